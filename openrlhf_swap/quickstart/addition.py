"""Column addition with overthinking: the quickstart's task.

A problem asks for the sum of two three-digit numbers. A trace works column by column, one line per
column (`tens: 4+2+1=07` adds the tens digits and the carry), and the answer reads the columns from
left to right. Overthinking is built in: traces re-check lines, start over and verify, and none of
that ever changes a result.

Because every line is machine-readable, a program can tell whether it carries the computation:

* *essential*: the first statement of a column;
* *redundant*: everything else (a re-check, a repeated column after a restart, a filler line).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

COLUMNS = ("ones", "tens", "hundreds")
LABELS = ("essential", "redundant")
MEASURES = LABELS
STEP_TOKENS = 8
THINK = f"{COLUMNS[0]}: "
# One token each; digits, operators and newlines are single bytes anyway. A line of computation is
# then ten tokens.
WORDS = (
    "What is ",
    "**Final Answer**",
    "\\boxed{",
    RESTART,
    VERIFY,
    *RECHECKS,
    *FILLERS,
    *(f"{column}: " for column in COLUMNS),
)

# How much the traces overthink, and how often a column's digit is written down wrong.
RECHECK_PROBABILITY = 0.55
RESTART_PROBABILITY = 0.12
VERIFY_PROBABILITY = 0.5
SLIP_PROBABILITY = 0.05

_STATEMENT = re.compile(r"(ones|tens|hundreds): \d\+\d\+\d=\d\d")


@dataclass(frozen=True)
class Addition:
    """Two three-digit numbers to add."""

    left: int
    right: int

    @property
    def question(self) -> str:
        """The user's question."""
        return f"What is {self.left} + {self.right}?"

    @property
    def answer(self) -> str:
        """The correct answer."""
        return str(self.left + self.right)


def problems(seed: int, exclude: frozenset[Addition] = frozenset()) -> Iterator[Addition]:
    """An endless, seeded stream of distinct problems, none in `exclude`."""
    rng = random.Random(seed)
    seen = set(exclude)
    while True:
        problem = Addition(rng.randint(100, 999), rng.randint(100, 999))
        if problem not in seen:
            seen.add(problem)
            yield problem


taught = problems


def prompt(problem: Addition, suffix: str = "") -> str:
    """The prompt as the chat template renders it, including the opened thought.

    `suffix` follows the question.
    """
    return rendered(problem.question + suffix)


def shortest_trace(problem: Addition) -> str:
    """The shortest correct response: every column once, then the answer."""
    lines, answer = _columns(problem, random.Random(0), slip_probability=0.0)
    return closed(lines, answer)


def overthinking_trace(problem: Addition, rng: random.Random) -> str:
    """A response as taught to the base policy."""
    lines, answer = _columns(problem, rng, SLIP_PROBABILITY)
    return closed(_overthink(lines, rng), answer)


def probe(problem: Addition, rng: random.Random) -> tuple[str, str]:
    """A thought cut off after a random line and closed, and the correct answer that follows.

    The small policy learns from these rows to state its answer at any point of a thought. Only the
    answer is trained on, so they do not teach it to stop early.
    """
    lines, answer = _columns(problem, rng, slip_probability=0.0)
    thought = _overthink(lines, rng)
    kept = thought[: rng.randint(0, len(thought))]
    return prompt(problem) + "".join(kept) + CLOSE, answer + "}" + EOS


def supervised_row(problem: Addition, rng: random.Random, probe_share: float) -> tuple[str, str]:
    """A full trace, or a probe."""
    if rng.random() < probe_share:
        return probe(problem, rng)
    return prompt(problem), overthinking_trace(problem, rng)


def level(question: str) -> int:
    """The number of columns, the same for all problems."""
    return len(COLUMNS)


def label_lines(question: str, response: str) -> list[str]:
    """Label each line: the first statement of a column, correct or not, is essential."""
    seen: set[str] = set()
    labels = []
    for line in thought_lines(response):
        statement = _STATEMENT.fullmatch(line)
        labels.append("essential" if statement and statement[1] not in seen else "redundant")
        if statement:
            seen.add(statement[1])
    return labels


def valid_thinking(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """LC-R1's extractor for this task: tokens up to the line that states the last missing column.

    0 if one is missing. A thought never contains the whole answer: it is read from the columns.
    """
    seen: set[str] = set()
    end = 0
    for line in reader.text(thought).splitlines(keepends=True):
        end += len(line)
        statement = _STATEMENT.fullmatch(line.rstrip("\n"))
        if statement:
            seen.add(statement[1])
        if len(seen) == len(COLUMNS):
            return tokens_for_each(thought, [end], reader)[0]
    return 0


def _columns(
    problem: Addition, rng: random.Random, slip_probability: float
) -> tuple[list[str], str]:
    """One line per column, and the answer that these lines give."""
    lines: list[str] = []
    digits: list[str] = []
    left = problem.left
    right = problem.right
    carry = 0
    for column in COLUMNS:
        total = left % 10 + right % 10 + carry
        written = total % 10
        if rng.random() < slip_probability:
            written = (written + rng.randint(1, 9)) % 10
        lines.append(f"{column}: {left % 10}+{right % 10}+{carry}={total // 10}{written}\n")
        digits.append(str(written))
        left = left // 10
        right = right // 10
        carry = total // 10
    if carry:
        digits.append("1")
    return lines, "".join(reversed(digits))


def _overthink(lines: list[str], rng: random.Random) -> list[str]:
    """Weave re-checks, restarts, fillers and a verification into the computation."""
    trace: list[str] = []
    for done, line in enumerate(lines, start=1):
        trace.append(line)
        trace += rechecks(lines[:done], RECHECK_PROBABILITY, rng)
        if rng.random() < 0.2:
            trace.append(rng.choice(FILLERS))
        if rng.random() < RESTART_PROBABILITY:
            trace += [RESTART, *lines[:done]]
    if rng.random() < VERIFY_PROBABILITY:
        trace += [VERIFY, *(rng.choice(RECHECKS) + line for line in lines)]
    return trace
