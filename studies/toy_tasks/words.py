"""Words of fixed permutations: every letter needs a line of thought.

Most needed lines gain nothing by themselves. Six permutations of ten symbols, A to F, stand nowhere
in a problem: the policy keeps them in its weights. A problem is a start and a word, `From 3 by
C1A2F3B4D5`: each letter replaces the symbol, and the answer is the last one. They do not commute,
so a few layers cannot guess it without writing the symbols down, one letter a line (`C1 3>7`).
`Flip 3`, in three problems of ten, exchanges the start first, by a line of its own. The question
ends with symbols that the answer is not: `, not 38`.

The last line alone gains the answer here; in `word_pairs` there are two words, and each one's last
line gains half. Traces re-check a line, start over and flip where nothing is to be flipped, all of
which gains nothing, and conclude too early (`so 4`), which gains a little, because the policy then
thinks of the symbols that are ruled out. Slips and left-out lines make some of them wrong, and are
never mended.

A program labels what each line is for: *essential* is the first statement of a letter of the word,
and of the flip where there is one; everything else is *redundant*. Essential lines that are not
there are counted as *missing*.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product

from openrlhf_swap.quickstart.world import (
    CLOSE,
    EOS,
    FILLERS,
    RESTART,
    VERIFY,
    closed,
    rendered,
    thought_lines,
)
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for_each

SYMBOLS = "0123456789"
# What a letter makes of 0, 1, ... 9. Nothing stays where it is, so a line that is left out changes
# what follows.
LETTERS = {
    "A": "8314709625",
    "B": "3094162875",
    "C": "1708935462",
    "D": "7652831094",
    "E": "7856013942",
    "F": "9586274130",
}
FLIP = "3590817642"
LENGTHS = (5, 9)  # letters of a problem
SECOND = 5  # the number of the second word's first letter
RULED_OUT = 2  # symbols
FLIPPED_SHARE = 0.3
PAIRS_SHARE = 0.4  # of the problems that the policy is taught
LABELS = ("essential", "redundant")
MEASURES = (*LABELS, "missing")
STEP_TOKENS = 3  # a conclusion has three tokens, a letter's line four
THINK = FILLERS[1]
RECHECK = "wait "
CONCLUSION = "so"


def tokens_of(longest: int) -> tuple[str, ...]:
    """What is one token where words have at most so many letters."""
    return (
        "From ",
        "Flip ",
        " by ",
        " and ",
        ", not ",
        "**Final Answer**",
        "\\boxed{",
        RESTART,
        VERIFY,
        RECHECK,
        CONCLUSION,
        "flip",
        *FILLERS,
        *(f"{letter}{number}" for number, letter in product(range(1, longest + 1), LETTERS)),
        *(sign + symbol for sign, symbol in product(" >", SYMBOLS)),
    )


WORDS = tokens_of(LENGTHS[1])

# How the traces err, and how much they overthink.
SLIP_PROBABILITY = 0.02
SKIP_PROBABILITY = 0.01
SKIPPED_FLIP_PROBABILITY = 0.1
RECHECK_PROBABILITY = 0.35
RESTART_PROBABILITY = 0.06
CONCLUSION_PROBABILITY = 0.15
IDLE_FLIP_PROBABILITY = 0.6
FILLER_PROBABILITY = 0.1
VERIFY_PROBABILITY = 0.3
LINES = 36  # per thought at most, because the rows of an update are padded to the longest

_QUESTION = re.compile(
    r"(From|Flip) (\d) by ((?:[A-F]\d+)+)(?: and (\d) by ((?:[A-F]\d+)+))?, not (\d+)"
)
_STATEMENT = re.compile(r"(flip|[A-F]\d+) \d>\d")
_LETTER = re.compile("[A-F]")


@dataclass(frozen=True)
class Word:
    """A start symbol and letters, numbered from `first`."""

    start: str
    letters: str
    first: int = 1

    @property
    def heads(self) -> list[str]:
        """How its lines begin."""
        return [f"{letter}{number}" for number, letter in enumerate(self.letters, self.first)]


@dataclass(frozen=True)
class Words:
    """One word or two, whether the first start is flipped, and what the last symbol is not."""

    words: tuple[Word, ...]
    flipped: bool
    ruled_out: str

    @property
    def question(self) -> str:
        """The user's question."""
        written = (f"{word.start} by {''.join(word.heads)}" for word in self.words)
        return f"{'Flip' if self.flipped else 'From'} {' and '.join(written)}, not {self.ruled_out}"

    @property
    def needed(self) -> list[str]:
        """How the needed lines begin, in order."""
        heads = chain.from_iterable(word.heads for word in self.words)
        return ["flip"] * self.flipped + list(heads)

    @property
    def answer(self) -> str:
        """The last symbol of each word."""
        ends = []
        for number, word in enumerate(self.words):
            symbol = replaced("flip", word.start) if self.flipped and not number else word.start
            for head in word.heads:
                symbol = replaced(head, symbol)
            ends.append(symbol)
        return "".join(ends)


@dataclass(frozen=True)
class Thought:
    """The lines of a thought, and the symbol at which each word ends by it."""

    lines: list[str]
    ends: list[str]

    @property
    def response(self) -> str:
        """The thought and the answer that it comes to."""
        return closed(self.lines, "".join(self.ends))


def replaced(head: str, symbol: str) -> str:
    """What the line that begins so makes of a symbol."""
    return (FLIP if head == "flip" else LETTERS[head[0]])[int(symbol)]


def from_question(question: str) -> Words:
    """The problem with this question."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        raise ValueError(f"{question!r} is no question of this world")
    flip, start, first, second_start, second, ruled_out = found.groups()
    words = (Word(start, letters_in(first)),)
    if second:
        words += (Word(second_start, letters_in(second), SECOND),)
    return Words(words, flip == "Flip", ruled_out)


def letters_in(heads: str) -> str:
    """The letters of a word as a question writes it, without their numbers."""
    return "".join(_LETTER.findall(heads))


def problems(
    seed: int, exclude: frozenset[Words] = frozenset(), count: int = 1, first: int | None = None
) -> Iterator[Words]:
    """An endless, seeded stream of distinct problems of `count` words, none in `exclude`.

    No pair begins with 0. The first of two words has `first` letters, by default two to four, the
    second one to five.
    """
    rng = random.Random(seed)
    seen = set(exclude)
    while True:
        problem = _problem(rng, count, first)
        if problem not in seen and (count == 1 or problem.answer[0] != "0"):
            seen.add(problem)
            yield problem


def taught(seed: int) -> Iterator[Words]:
    """The problems that the policy is taught: of one word, two times in five of two.

    It serves for both.
    """
    rng = random.Random(seed)
    one = problems(seed)
    two = problems(seed, count=2)
    while True:
        yield next(two if rng.random() < PAIRS_SHARE else one)


def _problem(rng: random.Random, count: int, first: int | None) -> Words:
    letters = rng.choices(list(LETTERS), k=rng.randint(*LENGTHS))
    cut = len(letters)
    if count == 2:
        cut = first or rng.randint(max(2, len(letters) - 5), min(4, len(letters) - 3))
    parts = ["".join(letters[:cut]), "".join(letters[cut:])][:count]
    return problem_of(parts, rng)


def problem_of(parts: Sequence[str], rng: random.Random) -> Words:
    """A problem with these letters of its one word or two; all else is drawn."""
    words = tuple(
        Word(rng.choice(SYMBOLS), part, number)
        for part, number in zip(parts, (1, SECOND), strict=False)
    )
    flipped = rng.random() < FLIPPED_SHARE
    others = [symbol for symbol in SYMBOLS if symbol != Words(words, flipped, "").answer[-1]]
    return Words(words, flipped, "".join(rng.sample(others, RULED_OUT)))


def prompt(problem: Words) -> str:
    """The prompt as the chat template renders it, including the opened thought."""
    return rendered(problem.question)


def level(question: str) -> int:
    """The number of lines that the problem needs."""
    return len(from_question(question).needed)


def shortest_lines(problem: Words) -> list[str]:
    """The needed lines."""
    lines = []
    symbol = problem.words[0].start
    starts = {word.heads[0]: word.start for word in problem.words[1:]}
    for head in problem.needed:
        source = starts.get(head, symbol)
        symbol = replaced(head, source)
        lines.append(f"{head} {source}>{symbol}\n")
    return lines


def shortest_trace(problem: Words) -> str:
    """Every needed line once, and the answer."""
    return closed(shortest_lines(problem), problem.answer)


def overthinking_trace(problem: Words, rng: random.Random) -> str:
    """A response as taught to the base policy."""
    return overthink(problem, rng).response


def supervised_row(problem: Words, rng: random.Random, probe_share: float) -> tuple[str, str]:
    """A full trace, or a probe: a thought cut off anywhere, and the answer as known there."""
    return row_of(problem, overthink(problem, rng), rng, probe_share)


def row_of(
    problem: Words, thought: Thought, rng: random.Random, probe_share: float
) -> tuple[str, str]:
    """What the base policy reads, and what it is taught to write next, of a thought or a probe.

    What a probe does not know is drawn, from all symbols or, behind a conclusion, from those that
    are not ruled out: a true answer would teach the policy to go through the last letters in its
    head.
    """
    if rng.random() >= probe_share:
        return prompt(problem), thought.response
    kept = thought.lines[: rng.randint(0, len(thought.lines))]
    answer = known(problem, kept, thought.ends, rng)
    return prompt(problem) + "".join(kept) + CLOSE, answer + "}" + EOS


def known(problem: Words, lines: list[str], ends: list[str], rng: random.Random) -> str:
    """The ends of the words whose last line is there, and symbols drawn for the others."""
    concluded = any(line.startswith(CONCLUSION) for line in lines)
    heads = {line.split()[0] for line in lines}
    symbols = []
    for word, end in zip(problem.words, ends, strict=True):
        last = word is problem.words[-1]
        possible = SYMBOLS if last else SYMBOLS[1:]
        if last and concluded:
            possible = "".join(symbol for symbol in SYMBOLS if symbol not in problem.ruled_out)
        symbols.append(end if word.heads[-1] in heads else rng.choice(possible))
    return "".join(symbols)


def overthink(
    problem: Words, rng: random.Random, most_lines: int = LINES, errors: float = 1.0
) -> Thought:
    """A thought of at most so many lines; `errors` multiplies how often a letter's line errs."""
    while True:
        thought = _overthink(problem, rng, errors)
        if len(thought.lines) <= most_lines:
            return thought


def _overthink(problem: Words, rng: random.Random, errors: float) -> Thought:
    trace: list[str] = []
    stated: list[str] = []
    ends: list[str] = []
    possible = [symbol for symbol in SYMBOLS if symbol not in problem.ruled_out]
    for word in problem.words:
        symbol = word.start
        is_first = not ends
        flips = is_first and (problem.flipped or rng.random() < IDLE_FLIP_PROBABILITY)
        for head in ["flip", *word.heads] if flips else word.heads:
            if rng.random() < CONCLUSION_PROBABILITY:
                trace.append(f"{CONCLUSION} {rng.choice(possible)}\n")
            if rng.random() < FILLER_PROBABILITY:
                trace.append(rng.choice(FILLERS))
            if rng.random() < skip_probability(head, word, errors):
                continue
            after = symbol if head == "flip" and not problem.flipped else replaced(head, symbol)
            if rng.random() < errors * SLIP_PROBABILITY:
                after = rng.choice([other for other in SYMBOLS if other not in (symbol, after)])
            line = f"{head} {symbol}>{after}\n"
            symbol = after
            trace.append(line)
            stated.append(line)
            while rng.random() < RECHECK_PROBABILITY:
                trace.append(RECHECK + line)
            if rng.random() < RESTART_PROBABILITY:
                trace += [RESTART, *stated]
        ends.append(symbol)
    if rng.random() < VERIFY_PROBABILITY:
        trace += [VERIFY, *stated]
    return Thought(trace, ends)


def skip_probability(head: str, word: Word, errors: float) -> float:
    """How often a line is left out.

    The last letter's never is: the thought would not show that the word has ended.
    """
    if head == "flip":
        return SKIPPED_FLIP_PROBABILITY
    return 0.0 if head == word.heads[-1] else errors * SKIP_PROBABILITY


def valid_thinking(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """LC-R1's extractor for this task, with one word: tokens of the valid thought.

    It ends with the first line in which the last of the stated letters gives the answer; 0 without
    one.
    """
    text = reader.text(thought)
    numbers = [found[1][1:] for found in _STATEMENT.finditer(text) if found[1] != "flip"]
    last = max(numbers, key=int, default="")
    found = re.search(rf"^[A-F]{last} \d>{answer}\n", text, re.MULTILINE)
    return tokens_for_each(thought, [found.end()], reader)[0] if found else 0


def label_lines(question: str, response: str) -> list[str]:
    """What each line is for, as defined in this module's docstring."""
    lacking = set(from_question(question).needed)
    labels = []
    for line in thought_lines(response):
        found = _STATEMENT.fullmatch(line)
        head = found[1] if found else ""
        labels.append("essential" if head in lacking else "redundant")
        lacking.discard(head)
    return labels
