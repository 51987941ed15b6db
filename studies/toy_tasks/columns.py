"""Columns filled in from memory: the worth of a line is known, and its gain shows at once.

A problem names six letters, one a column, `Fill C1A2F3B4D5E6`. A table that stands nowhere in a
problem, but in the policy's weights, gives each letter of each column a symbol; five of a column's
ten letters give the default, 0. Column j has another symbol with probability .5, .3, .2, .1, .06
and .03. The answer is all six symbols, and a thought writes them down, one a line (`C1>7`). The
policy is taught to answer the default for a column without a line, so leaving out line j costs its
probability of accuracy, and a line with another symbol gains the moment it is there.

Traces re-check earlier lines, start over and verify; a program labels as *essential* the first
statement of each column and everything else as *redundant*. Lines left out make some answers wrong.
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
    RESTART,
    VERIFY,
    closed,
    rendered,
    thought_lines,
)
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for_each

LETTERS = "ABCDEFGHIJ"
DEFAULT = "0"
DIFFERS = (
    0.5,
    0.3,
    0.2,
    0.1,
    0.06,
    0.03,
)  # probability, of each column, that its symbol is not the default
_TABLES = random.Random(54)
TABLES = [
    dict(zip(_TABLES.sample(LETTERS, 10), DEFAULT * 5 + "37258", strict=True)) for _ in DIFFERS
]
LABELS = ("essential", "redundant")
MEASURES = (*LABELS, "missing")
STEP_TOKENS = 3  # a line is a step
THINK = FILLERS[1]
RECHECK = "wait "
WORDS = (
    "Fill ",
    "**Final Answer**",
    "\\boxed{",
    RESTART,
    VERIFY,
    RECHECK,
    *FILLERS,
    *(f"{letter}{column}" for column, letter in product(range(1, len(DIFFERS) + 1), LETTERS)),
    *(f">{symbol}" for symbol in "0123456789"),
)

# How the traces err, and how much they overthink.
SKIP_PROBABILITY = 0.04
RECHECK_PROBABILITY = 0.45
RESTART_PROBABILITY = 0.03
VERIFY_PROBABILITY = 0.3
LINES = 24  # of a thought at most, so that K steps hold a line each

_QUESTION = re.compile(r"Fill ((?:[A-J]\d){6})")
_STATEMENT = re.compile(r"([A-J][1-6])>\d")


@dataclass(frozen=True)
class Columns:
    """One letter for each column."""

    letters: str

    @property
    def heads(self) -> list[str]:
        """How its needed lines begin."""
        return [f"{letter}{column}" for column, letter in enumerate(self.letters, 1)]

    @property
    def question(self) -> str:
        """The user's question."""
        return f"Fill {''.join(self.heads)}"

    @property
    def answer(self) -> str:
        """The symbol of each column."""
        return "".join(table[letter] for table, letter in zip(TABLES, self.letters, strict=True))


def from_question(question: str) -> Columns:
    """The problem with this question."""
    found = _QUESTION.fullmatch(question)
    if found is None:
        raise ValueError(f"{question!r} is no question of this world")
    return Columns(found[1][::2])


def problems(seed: int, exclude: frozenset[Columns] = frozenset()) -> Iterator[Columns]:
    """An endless, seeded stream of distinct problems, none in `exclude`."""
    rng = random.Random(seed)
    seen = set(exclude)
    while True:
        differs = [rng.random() < probability for probability in DIFFERS]
        letters = ""
        for table, other in zip(TABLES, differs, strict=True):
            possible = [letter for letter in LETTERS if (table[letter] != DEFAULT) == other]
            letters += rng.choice(possible)
        problem = Columns(letters)
        if problem not in seen:
            seen.add(problem)
            yield problem


taught = problems


def level(question: str) -> int:
    """The number of lines that the problem needs."""
    return len(DIFFERS)


def shortest_lines(problem: Columns) -> list[str]:
    """The needed lines."""
    return [
        f"{head}>{symbol}\n" for head, symbol in zip(problem.heads, problem.answer, strict=True)
    ]


def overthinking_trace(problem: Columns, rng: random.Random) -> str:
    """A response as taught to the base policy."""
    lines = overthink(problem, rng)
    return closed(lines, known(problem, lines))


def supervised_row(problem: Columns, rng: random.Random, probe_share: float) -> tuple[str, str]:
    """A full trace, or a probe: a thought cut off anywhere, and the answer as known there."""
    lines = overthink(problem, rng)
    if rng.random() >= probe_share:
        return rendered(problem.question), closed(lines, known(problem, lines))
    kept = lines[: rng.randint(0, len(lines))]
    return rendered(problem.question) + "".join(kept) + CLOSE, known(problem, kept) + "}" + EOS


def known(problem: Columns, lines: list[str]) -> str:
    """The symbols of the columns that have a line, and the default for the others."""
    pairs = zip(shortest_lines(problem), problem.answer, strict=True)
    return "".join(symbol if line in lines else DEFAULT for line, symbol in pairs)


def overthink(problem: Columns, rng: random.Random) -> list[str]:
    """Lines of a thought."""
    while True:
        trace: list[str] = []
        stated: list[str] = []
        for line in shortest_lines(problem):
            if rng.random() < SKIP_PROBABILITY:
                continue
            stated.append(line)
            trace.append(line)
            while rng.random() < RECHECK_PROBABILITY:
                trace.append(RECHECK + rng.choice(stated))
            if rng.random() < RESTART_PROBABILITY:
                trace += [RESTART, *stated]
        if rng.random() < VERIFY_PROBABILITY:
            trace += [VERIFY, *stated]
        if len(trace) <= LINES:
            return trace


def valid_thinking(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """LC-R1's extractor for this task: tokens of the valid thought.

    It ends with the line after which the symbols, the default where a column has none, are the
    answer; 0 without one.
    """
    symbols = [DEFAULT] * len(DIFFERS)
    end = 0
    for line in reader.text(thought).splitlines(keepends=True):
        end += len(line)
        found = _STATEMENT.fullmatch(line.rstrip("\n"))
        if found:
            symbols[int(found[1][1:]) - 1] = found[0][-1]
            if "".join(symbols) == answer:
                return tokens_for_each(thought, [end], reader)[0]
    return 0


def label_lines(question: str, response: str) -> list[str]:
    """What each line is for, as defined in this module's docstring."""
    lacking = set(from_question(question).heads)
    labels = []
    for line in thought_lines(response):
        found = _STATEMENT.fullmatch(line)
        head = found[1] if found else ""
        labels.append("essential" if head in lacking else "redundant")
        lacking.discard(head)
    return labels
