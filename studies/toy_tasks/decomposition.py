"""Several sums, by short guesses that are often wrong or by long additions that are right.

Accuracy costs tokens. A problem has several sums of two to five digits. A sum takes one line as a
guess (`b: =21`), which a policy of this size often gets wrong for lack of capacity, or it is added
two numbers at a time (`b1: 3+6=09`, `b2: 09+7=16`, `b3: 16+5=21`), which it gets right. Traces
guess, decompose, re-check, repeat, start over and verify; a decomposition corrects a wrong guess.
The answer has two digits per sum. This world does not test whether a method spares needed steps:
the policy often answers correctly without any (studies/records/comparison.md).

A program labels what each line is for:

* *essential*: the first statement of a sum, or of a part of it, while the sum has no result yet;
* *useful*: the first statement of a part of a sum that was only guessed, and a result that corrects
a wrong one;
* *redundant*: everything else.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from openrlhf_swap.quickstart.world import (
    CLOSE,
    EOS,
    FILLERS,
    RECHECKS,
    RESTART,
    VERIFY,
    closed,
    rechecks,
    rendered,
    thought_lines,
)
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for_each

NAMES = "abcde"
TERMS = (2, 3, 4, 5)  # per sum
DIGITS = range(1, 8)
LARGEST = max(TERMS) * max(DIGITS)
OPERATIONS = 12  # per problem at most
LABELS = ("essential", "useful", "redundant")
MEASURES = LABELS
STEP_TOKENS = 3  # a guess has three tokens, other lines of computation five or six
THINK = FILLERS[1]  # a sum may begin either way, so no other token can begin every thought
QUESTION = "Sums of "
WORDS = (
    QUESTION,
    ", ",
    "**Final Answer**",
    "\\boxed{",
    RESTART,
    VERIFY,
    *RECHECKS,
    *FILLERS,
    *(f"{name}{part}: " for name, part in product(NAMES, ("", *range(1, max(TERMS))))),
    *(f"+{digit}" for digit in DIGITS),
    *(f"{sign}{total:02d}" for sign, total in product(("", "="), range(LARGEST + 1))),
)

# How often a sum of more than two numbers is guessed, how often the long way follows a guess, and
# how much the traces overthink.
GUESS_PROBABILITY = 0.75
DECOMPOSE_PROBABILITY = 0.35
RECHECK_PROBABILITY = 0.5
REPEAT_PROBABILITY = 0.4
FILLER_PROBABILITY = 0.2
RESTART_PROBABILITY = 0.2
VERIFY_PROBABILITY = 0.7
LINES = 36  # per thought at most, because the rows of an update are padded to the longest
# Share of the rows in which a wrong guess is part of the input and what is taught corrects it.
MENDED_SHARE = 0.3

_STATEMENT = re.compile(rf"(?:{'|'.join(RECHECKS)})?([{NAMES}])([1-9]?): (?:\d+(?:\+\d)+)?=(\d\d)")

Sum = tuple[int, ...]


@dataclass(frozen=True)
class Sums:
    """Sums of digits, named a, b, c and so on."""

    sums: tuple[Sum, ...]

    @property
    def question(self) -> str:
        """The user's question."""
        named = zip(NAMES, self.sums, strict=False)
        return QUESTION + ", ".join(f"{name}: {'+'.join(map(str, terms))}" for name, terms in named)

    @property
    def answer(self) -> str:
        """The sums in order, two digits each."""
        return "".join(f"{sum(terms):02d}" for terms in self.sums)

    @property
    def operations(self) -> int:
        """The number of additions of two numbers."""
        return sum(len(terms) - 1 for terms in self.sums)


def from_question(question: str) -> Sums:
    """The problem with this question."""
    named = question.removeprefix(QUESTION).split(", ")
    return Sums(tuple(tuple(map(int, part.split(": ")[1].split("+"))) for part in named))


def problems(seed: int, exclude: frozenset[Sums] = frozenset()) -> Iterator[Sums]:
    """An endless, seeded stream of distinct problems, none in `exclude`.

    No answer begins with 0.
    """
    rng = random.Random(seed)
    seen = set(exclude)
    while True:
        sums = []
        for _ in range(rng.randint(2, len(NAMES))):
            terms = rng.choice(TERMS)
            sums.append(tuple(rng.choice(DIGITS) for _ in range(terms)))
        problem = Sums(tuple(sums))
        if problem not in seen and problem.operations <= OPERATIONS and problem.answer[0] != "0":
            seen.add(problem)
            yield problem


taught = problems


def prompt(problem: Sums) -> str:
    """The prompt as the chat template renders it, including the opened thought."""
    return rendered(problem.question)


def level(question: str) -> int:
    """The number of additions of two numbers."""
    return from_question(question).operations


def guess(name: str, terms: Sum, result: int | None = None) -> str:
    """A sum in one line, with its result or a given one; a sum of two numbers is written out."""
    written = "+".join(map(str, terms)) if len(terms) == 2 else ""
    return f"{name}: {written}={sum(terms) if result is None else result:02d}\n"


def _missed(total: int, rng: random.Random) -> int:
    """A result that is slightly off, as guesses are."""
    return min(max(total + rng.choice((-3, -2, -1, 1, 2, 3)), 0), LARGEST)


def decompose(name: str, terms: Sum) -> list[str]:
    """A sum added two numbers at a time; for a sum of two numbers, the guess."""
    if len(terms) == 2:
        return [guess(name, terms)]
    lines = []
    total = terms[0]
    shown = str(terms[0])
    for part, term in enumerate(terms[1:], 1):
        lines.append(f"{name}{part}: {shown}+{term}={total + term:02d}\n")
        total += term
        shown = f"{total:02d}"
    return lines


def shortest_trace(problem: Sums, guessing: bool = False) -> str:
    """Every sum once, the long way or by `guessing`, and the answer."""
    lines = []
    for name, terms in zip(NAMES, problem.sums, strict=False):
        lines += [guess(name, terms)] if guessing else decompose(name, terms)
    return closed(lines, problem.answer)


def overthinking_trace(problem: Sums, rng: random.Random) -> str:
    """A response as taught to the base policy."""
    return closed(overthink(problem, rng, mend=False)[0], problem.answer)


def supervised_row(problem: Sums, rng: random.Random, probe_share: float) -> tuple[str, str]:
    """A full trace, one that continues after a wrong guess, or a probe.

    A probe is a thought cut off anywhere, and the answer.
    """
    kind = rng.random()
    thought, read = overthink(problem, rng, mend=kind >= 1 - MENDED_SHARE)
    if kind < probe_share:
        kept = thought[: rng.randint(0, len(thought))]
        return prompt(problem) + "".join(kept) + CLOSE, problem.answer + "}" + EOS
    return prompt(problem) + "".join(thought[:read]), closed(thought[read:], problem.answer)


def overthink(problem: Sums, rng: random.Random, mend: bool) -> tuple[list[str], int]:
    """Lines of a thought, and how many end with a wrong guess that is corrected later.

    0 if there is none. With `mend` the first sum that is guessed and then decomposed is guessed
    wrong.
    """
    while True:
        trace, read = _overthink(problem, rng, mend)
        if len(trace) <= LINES:
            return trace, read


def _overthink(problem: Sums, rng: random.Random, mend: bool) -> tuple[list[str], int]:
    trace: list[str] = []
    results: list[str] = []  # the latest line that states each sum
    read = 0
    for name, terms in zip(NAMES, problem.sums, strict=False):
        hard = len(terms) > 2
        guessed = not hard or rng.random() < GUESS_PROBABILITY
        decomposed = hard and (not guessed or rng.random() < DECOMPOSE_PROBABILITY)
        if guessed:
            wrong = mend and decomposed and not read
            line = guess(name, terms, _missed(sum(terms), rng) if wrong else None)
            trace.append(line)
            results.append(line)
            if wrong:
                read = len(trace)
            else:
                trace += rechecks([line], RECHECK_PROBABILITY, rng)
        if decomposed:
            parts = decompose(name, terms)
            for done, line in enumerate(parts, 1):
                trace.append(line)
                trace += rechecks(parts[:done], RECHECK_PROBABILITY / 2, rng)
            if rng.random() < REPEAT_PROBABILITY:
                trace += parts
            results[len(results) - guessed :] = parts[-1:]
        if rng.random() < FILLER_PROBABILITY:
            trace.append(rng.choice(FILLERS))
        if rng.random() < RESTART_PROBABILITY:
            trace += [RESTART, *results]
    if rng.random() < VERIFY_PROBABILITY:
        trace += [VERIFY, *(rng.choice(RECHECKS) + line for line in results)]
    return trace, read


def results_of(question: str, response: str) -> list[tuple[Sum, list[int], list[int]]]:
    """Per sum: its terms, the guessed results, and those of completed decompositions, in order."""
    found: dict[str, tuple[Sum, list[int], list[int]]] = {
        name: (terms, [], [])
        for name, terms in zip(NAMES, from_question(question).sums, strict=False)
    }
    for line in thought_lines(response):
        statement = _STATEMENT.fullmatch(line)
        if statement and statement[1] in found:
            terms, guesses, ends = found[statement[1]]
            if not statement[2]:
                guesses.append(int(statement[3]))
            elif int(statement[2]) == len(terms) - 1 > 1:
                ends.append(int(statement[3]))
    return list(found.values())


def valid_thinking(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """LC-R1's extractor for this task: tokens of the valid thought.

    It ends with the line after which the sums' results are the answer; 0 without one.
    """
    results: dict[str, str] = {}
    end = 0
    for line in reader.text(thought).splitlines(keepends=True):
        end += len(line)
        found = _STATEMENT.fullmatch(line.rstrip("\n"))
        if found:
            results[found[1]] = found[3]
            if "".join(results[name] for name in sorted(results)) == answer:
                return tokens_for_each(thought, [end], reader)[0]
    return 0


def label_lines(question: str, response: str) -> list[str]:
    """What each line is for, as defined in this module's docstring."""
    problem = from_question(question)
    return list(_labels(thought_lines(response), problem))


def _labels(lines: Sequence[str], problem: Sums) -> Iterator[str]:
    results: dict[str, int] = {}
    whole: set[str] = set()  # sums that were decomposed completely
    stated: set[tuple[str, str]] = set()
    for line in lines:
        found = _STATEMENT.fullmatch(line)
        name, part, result = found.groups() if found else ("", "", "")
        terms = dict(zip(NAMES, problem.sums, strict=False)).get(name, ())
        if not terms or (part and not 1 <= int(part) < len(terms) > 2):
            yield "redundant"
            continue
        new = (name, part) not in stated
        states = not part or int(part) == len(terms) - 1
        right = int(result) == sum(terms)
        stated.add((name, part))
        if new and name not in results:
            yield "essential"
        elif (new and part and name not in whole) or (
            states and right and results[name] != int(result)
        ):
            yield "useful"
        else:
            yield "redundant"
        if states:
            results[name] = int(result)
            if part:
                whole.add(name)
