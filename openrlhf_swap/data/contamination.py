"""Which rows of a data set repeat a problem of a benchmark, whatever stands around it.

A row may hold a benchmark's problem in a wrapper: a chat template, an instruction, a heading, tags.
Or it is another problem that has the words of the benchmark's problem in it. The other rows of the
data set decide between the two. Say that "What is 3+4?" is a benchmark's problem:

    What is 3+4? Think step by step.
    What is 12-5? Think step by step.
    How many primes are less than 20? Think step by step.
    What is 3+4 times the number of apples?

Three rows end with "Think step by step.", so it belongs to a wrapper: the first row repeats the
benchmark's problem. No other row ends with "times the number of apples?": the last row stays.

Texts are compared by their keys (`problem_texts.py`), which have one spelling for all.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TextIO

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.problem_texts import (
    SHARED,
    Text,
    Triple,
    contains,
    nearly_same,
    read_text,
)

FEWEST_ROWS = 3  # that begin and end with the same texts, for these to be a wrapper
COMMON = 0.1  # share of the rows that have the same triple, for it to belong to wrappers
COUNTED_TOGETHER = 2000  # rows whose triples are counted before rare ones are forgotten
FEWEST_LETTERS = 4  # of a wrapper behind the problem: many problems end with a term such as "2x"
BEGINNING = 8  # characters of a problem's key by which it is looked up

_NUMBERS = re.compile(r"[\d.]+")
_FORMULA = re.compile(r"[-+*/=](?![a-z]{2})")  # but /no_think is none


@dataclass(frozen=True)
class BenchmarkProblem:
    """A problem of a benchmark, as it is compared."""

    benchmark: str
    id: str
    text: Text


@dataclass(frozen=True)
class Occurrence:
    """A benchmark's problem in a row, and the parts of the row's key that stand around it."""

    problem: BenchmarkProblem
    before: str
    after: str

    @property
    def cuts_a_number(self) -> bool:
        """Whether the problem begins or ends inside of a number of the row: 3+4 in 3+45."""
        key = self.problem.text.key
        borders = (self.before[-1:] + key[:1], key[-1:] + self.after[:1])
        return any(re.fullmatch(r"[\d.]{2}", border) for border in borders)

    @property
    def is_twice(self) -> bool:
        """Whether the row has the problem a second time behind the first, and nothing else."""
        return self.after == self.problem.text.key


class Wrappers:
    """What the rows of a data set begin and end with.

    Add all rows before asking.

    Args:
        keys: an empty file for the rows' keys, one row a line.
    """

    def __init__(self, keys: TextIO) -> None:
        self._keys = keys
        self._rows = 0
        self._counts: Counter[Triple] = Counter()
        self._lowered = 0  # how often the counts were lowered by one
        self._are_around: dict[tuple[str, str], bool] = {}

    def add(self, variants: Sequence[Text]) -> None:
        """Take a distinct row by its variants, see `read_variants`."""
        keys = {_without_numbers(text.key) for text in variants}
        self._keys.write("\t".join(keys) + "\n")  # no key has either
        self._rows += 1
        self._counts.update(variants[0].triples)
        if self._rows % COUNTED_TOGETHER == 0:
            self._lower_counts()

    def _lower_counts(self) -> None:
        """Lower each count by one, and forget those that are then 0 (Misra and Gries 1982).

        Most triples stand in one row alone, and would fill the memory. A triple of a tenth of the
        rows stays: it loses one count each time that it gains 200.
        """
        lowered: Counter[Triple] = Counter()
        for triple, count in self._counts.items():
            if count > 1:
                lowered[triple] = count - 1
        self._counts = lowered
        self._lowered += 1

    @cached_property
    def triples(self) -> set[Triple]:
        """Those of three rows and a tenth of all rows, at least; they belong to wrappers."""
        # Each true count is larger than the remaining one by `_lowered` at most.
        fewest = max(FEWEST_ROWS, COMMON * self._rows) - self._lowered
        return {triple for triple, count in self._counts.items() if count >= fewest}

    def has(self, before: str, after: str) -> bool:
        """Whether the texts before and after a problem are a wrapper, or the problem's number."""
        before = _without_numbers(before).rstrip()  # a space separates two numbers
        after = _without_numbers(after)
        if not _letters(before) and not _letters(after):
            return not before.strip("()<>*-# ") and not after.strip("*")
        if _FORMULA.match(after) or 0 < _letters(after) < FEWEST_LETTERS:
            return False
        if (before, after) not in self._are_around:
            self._are_around[before, after] = self._find_around(before, after)
        return self._are_around[before, after]

    def _find_around(self, before: str, after: str) -> bool:
        """Whether enough rows begin and end with these texts."""
        self._keys.seek(0)
        rows = 0
        for line in self._keys:
            keys = line.rstrip("\n").split("\t")
            rows += any(key.startswith(before) and key.endswith(after) for key in keys)
            if rows == FEWEST_ROWS:
                return True
        return False


def _without_numbers(key: str) -> str:
    """A key with a mark for each number, because wrappers count their problems."""
    return _NUMBERS.sub("#", key)


def _letters(key: str) -> int:
    return sum(map(str.isalpha, key))


class BenchmarkIndex:
    """Finds the benchmark's problem that a row repeats, without comparing it with every one."""

    def __init__(self, benchmarks: Mapping[str, Iterable[Problem]]) -> None:
        self._problems: list[BenchmarkProblem] = []
        self._by_beginning: defaultdict[str, list[BenchmarkProblem]] = defaultdict(list)
        # Their places in `_problems`.
        self._by_triple: defaultdict[Triple, list[int]] = defaultdict(list)
        for name, problems in benchmarks.items():
            for problem in problems:
                self._add(BenchmarkProblem(name, problem.id, read_text(problem.problem)))

    def _add(self, problem: BenchmarkProblem) -> None:
        place = len(self._problems)
        self._problems.append(problem)
        self._by_beginning[problem.text.key[:BEGINNING]].append(problem)
        for triple in problem.text.triples:
            self._by_triple[triple].append(place)

    def may_repeat(self, variants: Sequence[Text]) -> bool:
        """Whether a problem is a part of a row, or shares most triples of the shorter with it.

        Only of such a row the methods below find one.
        """
        for text in variants:
            if next(self._occurrences(text.key), None):
                return True
            for problem, shared in self._likeliest(text):
                if shared >= SHARED * min(len(problem.text.triples), len(text.triples)):
                    return True
        return False

    def find_wrapped(self, variants: Sequence[Text], wrappers: Wrappers) -> BenchmarkProblem | None:
        """The first problem that is all of a row, or all of it but a wrapper; None without one."""
        for text in variants:
            for found in self._occurrences(text.key):
                after = "" if found.is_twice else found.after
                if not found.cuts_a_number and wrappers.has(found.before, after):
                    return found.problem
        return None

    def find_near(self, variants: Sequence[Text], wrappers: Wrappers) -> BenchmarkProblem | None:
        """The likeliest problem that a row nearly repeats, perhaps in a wrapper; None without."""
        # Variants with the same triples differ in their keys alone.
        distinct = {text.triples: text for text in variants}
        for text in distinct.values():
            for problem, shared in self._likeliest(text):
                if nearly_same(text, problem.text):
                    return problem
                if shared >= SHARED * len(problem.text.triples):
                    unwrapped = _unwrapped(text, problem, wrappers)
                    if contains(unwrapped, problem.text):
                        return problem
        return None

    def _occurrences(self, key: str) -> Iterator[Occurrence]:
        """The problems whose whole key is a part of a row's key, from left to right.

        A problem shorter than `BEGINNING` is found only as all of the row.
        """
        last = max(0, len(key) - BEGINNING)
        for start in range(last + 1):
            beginning = key[start : start + BEGINNING]
            for problem in self._by_beginning.get(beginning, ()):
                if key.startswith(problem.text.key, start):
                    end = start + len(problem.text.key)
                    yield Occurrence(problem, key[:start], key[end:])

    def _likeliest(self, text: Text) -> list[tuple[BenchmarkProblem, int]]:
        """The problems that share triples with a text, and how many: most first."""
        shared: Counter[int] = Counter()
        for triple in text.triples:
            shared.update(self._by_triple.get(triple, ()))
        places = sorted(shared, key=lambda place: (-shared[place], place))
        return [(self._problems[place], shared[place]) for place in places]


def _unwrapped(text: Text, problem: BenchmarkProblem, wrappers: Wrappers) -> Text:
    """A text without the triples of wrappers; those that the problem has, too, stay."""
    return replace(text, triples=text.triples - (wrappers.triples - problem.text.triples))
