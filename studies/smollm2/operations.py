"""Problems that take two to four small operations, by reasoning-gym.

Each has its operations and a checked answer. Four tasks: chains of sums, equations in one unknown,
animal legs, and short stories; and a fifth that is easy, sums of three digits. A problem is dropped
unless its operations, computed here, give reasoning-gym's answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from openrlhf_swap.files import Row

LARGEST = 50  # limit of every number in a problem
SMALL_FACTOR = 12  # limit of one factor of a product, and of every divisor
OPERATIONS = range(2, 5)  # in a problem
LONGEST_QUESTION = 330  # characters

_EQUATION = re.compile(r"(\d+)\*\w ([+-]) (\d+) = (\d+)")
_TURNED = re.compile(r"(\d+) - (\d+)\*\w = (\d+)")
_LINE = re.compile(
    r"(?<![\d.*/+\u00d7-])(\d+) ?([-+*/\u00d7\u00f7]) ?(\d+) ?= "
    r"?\$?(\d+)(?![\d.]*\d|\s*[-+*/\u00d7\u00f7])"
)


@dataclass(frozen=True)
class Operation:
    """Two numbers, their operator, and a note said before.

    The operator is `+`, `-`, `*` or `/`, a note such as "one cat has 4 legs".
    """

    left: int
    sign: str
    right: int
    note: str = ""

    @property
    def key(self) -> tuple[str, int, int]:
        """What it computes: the same for both orders of a sum or a product."""
        left, right = (
            sorted((self.left, self.right)) if self.sign in "+*" else (self.left, self.right)
        )
        return self.sign, left, right

    @property
    def result(self) -> int:
        """The operation's value.

        Raises:
            ValueError: for a division with a remainder.
        """
        if self.sign == "/" and (self.right == 0 or self.left % self.right):
            raise ValueError(f"{self.left} / {self.right} is no whole number")
        results: dict[str, Callable[[int, int], int]] = {
            "+": int.__add__,
            "-": int.__sub__,
            "*": int.__mul__,
            "/": int.__floordiv__,
        }
        return results[self.sign](self.left, self.right)


@dataclass(frozen=True)
class Problem:
    """A task's problem, the operations that solve it in order, and its answer."""

    task: str
    question: str
    operations: tuple[Operation, ...]

    @property
    def answer(self) -> int:
        """The last operation's result."""
        return self.operations[-1].result

    def row(self) -> Row:
        """As a line of a problem file."""
        operations = [[part.left, part.sign, part.right, part.note] for part in self.operations]
        return {
            "task": self.task,
            "problem": self.question,
            "answer": str(self.answer),
            "operations": operations,
        }


def from_row(row: Row) -> Problem:
    """The problem in a line of a problem file."""
    return Problem(
        row["task"], row["problem"], tuple(Operation(*part) for part in row["operations"])
    )


def chain(entry: Row) -> Problem | None:
    """From reasoning-gym's chain_sum, "23 + 60 - 71": solved from left to right."""
    first, *rest = entry["metadata"]["expression"].split()
    total = int(first)
    operations = []
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        operations.append(Operation(total, sign, int(number)))
        total = operations[-1].result
    return _problem("chains", f"What is {entry['metadata']['expression']}?", operations)


def equation(entry: Row) -> Problem | None:
    """A problem of simple_equations, "8*t - 6 = 26" or "30 - 4*t = 2".

    It is solved by moving the constant, then dividing by the factor.
    """
    text = entry["metadata"]["equation"]
    plain = _EQUATION.fullmatch(text)
    turned = _TURNED.fullmatch(text)
    if plain:
        factor = int(plain[1])
        opposite = "-" if plain[2] == "+" else "+"
        moved = Operation(int(plain[4]), opposite, int(plain[3]))
    elif turned:
        left, factor, right = map(int, turned.groups())
        moved = Operation(left, "-", right)
    else:
        return None
    return _problem("equations", entry["question"], [moved, Operation(moved.result, "/", factor)])


def legs(entry: Row) -> Problem | None:
    """From leg_counting, "3 spiders, 5 ducks": the legs of each kind, then their sum."""
    from reasoning_gym.arithmetic.leg_counting import ANIMALS

    kinds = [
        Operation(number, "*", ANIMALS[animal], f"one {animal} has {ANIMALS[animal]} legs")
        for animal, number in entry["metadata"]["animals"].items()
    ]
    total = kinds[0].result
    sums = []
    for kind in kinds[1:]:
        sums.append(Operation(total, "+", kind.result))
        total = sums[-1].result
    question = entry["question"].strip().rpartition("\n")[2].removeprefix("Now, ").capitalize()
    return _problem("legs", question, [*kinds, *sums])


def story(entry: Row) -> Problem | None:
    """A problem of gsm_symbolic with its solution's operations.

    None unless they start from the question's numbers and all are used.
    """
    solution = entry["metadata"]["answer_cot"]
    operations = []
    known = {int(number) for number in re.findall(r"\d+", entry["question"])}
    for left, sign, right, stated in _LINE.findall(solution):
        operation = Operation(int(left), {"\u00d7": "*", "\u00f7": "/"}.get(sign, sign), int(right))
        if operation in operations:
            continue
        if not {operation.left, operation.right} <= known or str(_result(operation)) != stated:
            return None
        known.add(int(stated))
        operations.append(operation)
    used = {part.left for part in operations} | {part.right for part in operations}
    if any(part.result not in used for part in operations[:-1]):
        return None
    return _problem("stories", entry["question"].partition(" Give the result as")[0], operations)


def _result(operation: Operation) -> int | None:
    try:
        return operation.result
    except ValueError:
        return None


def _problem(task: str, question: str, operations: Sequence[Operation]) -> Problem | None:
    """The problem, or None if a number is too large or negative, or an operation occurs twice."""
    if len(operations) not in OPERATIONS or len(question) > LONGEST_QUESTION:
        return None
    for part in operations:
        result = _result(part)
        if result is None or not all(
            0 <= number <= LARGEST for number in (part.left, part.right, result)
        ):
            return None
        if part.sign == "/" and part.right > SMALL_FACTOR:
            return None
        if part.sign == "*" and min(part.left, part.right) > SMALL_FACTOR:
            return None
    if len({part.key for part in operations}) < len(operations):
        return None  # a repetition of one could not be told from the other
    return Problem(task, question, tuple(operations))


# Task -> reasoning-gym's name, its settings, and what turns an entry into a problem.
TASKS: dict[str, tuple[str, dict[str, Any], Callable[[Row], Problem | None]]] = {
    "chains": (
        "chain_sum",
        {"min_terms": 3, "max_terms": 5, "min_digits": 1, "max_digits": 2},
        chain,
    ),
    "equations": (
        "simple_equations",
        {"min_terms": 2, "max_terms": 2, "max_value": 12, "operators_weights": [0.5, 0.5, 0.0]},
        equation,
    ),
    "legs": ("leg_counting", {"min_animals": 2, "max_animals": 2, "max_instances": 9}, legs),
    "stories": ("gsm_symbolic", {}, story),
    "sums": (
        "chain_sum",
        {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1},
        chain,
    ),
}
EASY = ("sums",)  # what a warm-up of minutes masters
MIXED = tuple(task for task in TASKS if task not in EASY)


def problems(task: str, seed: int) -> Iterator[Problem]:
    """An endless, seeded stream of a task's problems, no two with the same operations."""
    import reasoning_gym

    name, settings, read = TASKS[task]
    seen = set()
    for number in count():
        block = 1000
        for entry in reasoning_gym.create_dataset(
            name, size=block, seed=seed + number * block, **settings
        ):
            problem = read(entry)
            if problem is None or problem.operations in seen:
                continue
            if str(problem.answer) != entry["answer"]:
                continue
            seen.add(problem.operations)
            yield replace(problem, task=task)
