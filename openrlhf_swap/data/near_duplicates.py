"""Find problems that are the same or nearly: spacing, punctuation and LaTeX spelling may differ, numbers may not.

So may the instructions that a data set puts around its problems, such as "Let's think step by step".
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from openrlhf_swap.data.benchmarks import Problem

# When one text counts as containing the other; docs/use/data.md says how these were chosen.
SHARED = 0.8
LONG_TEXT = 40  # triples; in a shorter text a single word can change the question, so there:
WORDS_SHARED = 0.95
SHARE_OF_LONGER = 0.5
FEWEST_NUMBERS = 2

# When words count as an instruction.
FEWEST_WORDS = 4  # problems share shorter endings, such as "the value of x?"
FEWEST_ROWS = 3
SHARE = 0.1  # of the distinct problems that must have it; a set may mix the instructions of several sources
AGREED = 0.9  # share of these that must have the next word too, or it belongs to problems

_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)|!\[[^\]]*\]\([^)]*\)", re.DOTALL | re.IGNORECASE)
# What two copies of a problem may write differently, in the order of replacement.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"\\\\|\\(?:begin|end)\s*\{[^}]*\}", " "),
        (r"\\[,;:!> ()\[\]]|[$~]", " "),
        (
            r"\\(?:left|right|[bB]igg?[lrm]?|(?:display|text)style|limits|q?quad|operatorname|text|text(?:bf|it|rm)"
            r"|math(?:rm|bf|it|sf)|mbox|hbox|emph|boldsymbol|bf|rm|it)(?![A-Za-z])\*?",
            " ",
        ),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*(?:([^\W_])|\{([^{}]*)\})\s*(?:([^\W_])|\{([^{}]*)\})", r" \1\2/\3\4 "),
        (r"\\(?:[clhv]?dots[bcimo]?)(?![A-Za-z])|\.{3,}", " dots "),
        (r"\\leq?(?:slant)?(?![A-Za-z])|≤", " <= "),
        (r"\\geq?(?:slant)?(?![A-Za-z])|≥", " >= "),
        (r"\\not\s*=|\\neq?(?![A-Za-z])|≠", " != "),
        (r"\\lt(?![A-Za-z])", " < "),
        (r"\\gt(?![A-Za-z])", " > "),
        (r"\\[bp]mod(?![A-Za-z])", " mod "),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])|[\u00d7\u00b7]", " * "),
        (r"π", " pi "),
        (r"°|\\degree(?![A-Za-z])", " circ "),
        (r"√", " sqrt "),
        (r"\u2212", "-"),
        (r"-{2,}|\*{2,}", " "),
        (r"(?<=\w)-(?=[^\W\d_]{2})", " "),  # six-sided, but not x-1
        (r"(?<=\d)\{?,\}?\s*(?=\d{3}(?!\d))", ""),  # 10,000
        (r"(?<=[\d)])!(?!=)|(?<![^\W\d_])([^\W\d_])!(?!=)", r"\1 factorial "),
    )
]
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|!=|[-+*/=<>|()]")


@dataclass(frozen=True)
class Text:
    """What is compared about a problem; figures count in the key alone."""

    key: str  # equal for two texts that differ only in spacing, punctuation, case and LaTeX spelling
    words: frozenset[str]  # distinct words, LaTeX command names and operators
    numbers: Counter[str]  # how often each number occurs
    triples: frozenset[tuple[str, ...]]  # distinct runs of three words, operators or numbers


class Match(NamedTuple):
    """The benchmark problem that a row repeats, word for word or nearly."""

    benchmark: str
    id: str
    exact: bool


def read_text(problem: str) -> Text:
    """Normalise a problem for comparison.

    The key includes figures if the prose has fewer than two numbers: the same words may ask about different figures.
    """
    prose = _tokens(_FIGURE.sub(" ", problem))
    numbers = Counter(filter(_is_number, prose))
    tokens = prose if numbers.total() >= FEWEST_NUMBERS else _tokens(problem)
    # `a b c` and `abc` are the same product, `1 2` and `12` are not the same number.
    gaps = [" " if _is_number(left) and _is_number(right) else "" for left, right in pairwise(tokens)]
    return Text(
        key="".join(token + gap for token, gap in zip(tokens, [*gaps, ""], strict=False)),
        words=frozenset(token for token in prose if not _is_number(token)),
        numbers=numbers,
        triples=frozenset(zip(prose, prose[1:], prose[2:], strict=False)),
    )


def _tokens(text: str) -> list[str]:
    text = unicodedata.normalize("NFKC", text)
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _TOKEN.findall(text.casefold())


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def nearly_same(first: Text, second: Text) -> bool:
    """Whether a problem is another problem with a few words changed or text added.

    All numbers, 80% of the words and 80% of the triples of one text must occur in the other text. If it has fewer than
    40 triples, 95% of its words must occur there, it needs at least two numbers, and the shared triples must be at
    least half of the longer text's. Problems that differ in a number are different problems.
    """
    return _contains(first, second) or _contains(second, first)


def _contains(longer: Text, shorter: Text) -> bool:
    shared = len(longer.triples & shorter.triples)
    if shared < SHARED * len(shorter.triples) or not shorter.numbers <= longer.numbers:
        return False
    words = len(longer.words & shorter.words)
    if len(shorter.triples) >= LONG_TEXT:
        return words >= SHARED * len(shorter.words)
    return (
        words >= WORDS_SHARED * len(shorter.words)
        and shorter.numbers.total() >= FEWEST_NUMBERS
        and shared >= SHARE_OF_LONGER * len(longer.triples)
    )


class BenchmarkIndex:
    """Finds the benchmark problem that a text repeats, without comparing it with every one."""

    def __init__(self, benchmarks: Mapping[str, Sequence[Problem]]) -> None:
        """Takes the problems of each benchmark; the first of several matches is reported."""
        self._problems: list[tuple[str, str, Text]] = []
        self._by_key: dict[str, int] = {}
        self._by_triple: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for name, problems in benchmarks.items():
            for problem in problems:
                text, number = read_text(problem.problem), len(self._problems)
                self._problems.append((name, problem.id, text))
                self._by_key.setdefault(text.key, number)
                for triple in text.triples:
                    self._by_triple[triple].append(number)

    def find(self, text: Text) -> Match | None:
        """The problem with the same text, or else the near-duplicate that shares the most triples."""
        if text.key in self._by_key:
            name, own_id, _ = self._problems[self._by_key[text.key]]
            return Match(name, own_id, exact=True)
        shared = Counter(number for triple in text.triples for number in self._by_triple.get(triple, ()))
        for number, _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
            name, own_id, other = self._problems[number]
            if nearly_same(text, other):
                return Match(name, own_id, exact=False)
        return None


@dataclass(frozen=True)
class Instruction:
    """Words at the beginning or the end of `count` distinct problems."""

    place: Literal["begin", "end"]
    words: tuple[str, ...]
    count: int


def without_instructions(problems: Sequence[str]) -> tuple[list[str], list[Instruction]]:
    """Distinct problems without the words that at least a tenth of them begin or end with, and those words.

    A template's own words ("What is the remainder when") are taken for an instruction too. White space is not kept.
    """
    words = [problem.split() for problem in problems]
    instructions: list[Instruction] = []
    while instruction := _most_common(words, "end") or _most_common(words, "begin"):
        instructions.append(instruction)
        length, is_end = len(instruction.words), instruction.place == "end"
        for number, problem in enumerate(words):
            if tuple(problem[-length:] if is_end else problem[:length]) == instruction.words:
                words[number] = problem[:-length] if is_end else problem[length:]
    return [" ".join(problem) for problem in words], instructions


def _most_common(problems: Sequence[Sequence[str]], place: Literal["begin", "end"]) -> Instruction | None:
    """The words that most problems share in a place, as far as nearly all of these agree on the next word."""
    fewest = max(FEWEST_ROWS, SHARE * len(problems))
    group, length = problems, 0
    while True:
        position = length if place == "begin" else -length - 1
        counts = Counter(words[position] for words in group if len(words) > length)
        word, count = counts.most_common(1)[0] if counts else ("", 0)
        if count < fewest or (length >= FEWEST_WORDS and count < AGREED * len(group)):
            break
        group = [words for words in group if len(words) > length and words[position] == word]
        length += 1
    if length < FEWEST_WORDS:
        return None
    shared = group[0][:length] if place == "begin" else group[0][-length:]
    return Instruction(place, tuple(shared), len(group))
