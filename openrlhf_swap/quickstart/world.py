"""The interface of a toy task, whose policy overthinks it; small enough for a CPU.

A toy task is a module that defines the names of `World`. `addition` is one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol, cast

from openrlhf_swap.errors import ConfigError

ADDITION = "openrlhf_swap.quickstart.addition"  # the quickstart's toy task

CLOSE = "</think>\n\n**Final Answer**\n\\boxed{"
EOS = "<|end|>"
RECHECKS = ("check ", "wait ", "again ")
FILLERS = ("hmm\n", "let me think\n")
RESTART = "let me start over\n"
VERIFY = "let me verify\n"


class Problem(Protocol):
    """Something with one correct answer. Hashable."""

    @property
    def question(self) -> str:
        """The user's question."""

    @property
    def answer(self) -> str:
        """The correct answer, digits."""


class World(Protocol):
    """A module that defines a toy task."""

    WORDS: Sequence[str]  # one token each, in addition to single bytes
    LABELS: Sequence[str]  # the possible labels of a thought's line
    MEASURES: Sequence[str]  # what `counts` counts of a response
    STEP_TOKENS: int  # the M at which a line is a step
    THINK: str  # the token that begins a thought where the policy may also answer at once

    def problems(self, seed: int, exclude: frozenset[Problem] = frozenset()) -> Iterator[Problem]:
        """An endless, seeded stream of distinct problems, none in `exclude`."""

    def taught(self, seed: int) -> Iterator[Problem]:
        """The problems of which the base policy is taught traces."""

    def supervised_row(
        self, problem: Problem, rng: random.Random, probe_share: float
    ) -> tuple[str, str]:
        """What the base policy reads, and what it is taught to write next."""

    def overthinking_trace(self, problem: Problem, rng: random.Random) -> str:
        """A response as taught to the base policy."""

    def label_lines(self, question: str, response: str) -> list[str]:
        """The label of each line before `</think>`, one of LABELS."""

    def level(self, question: str) -> int:
        """The number of operations that the problem needs."""


def load_world(module: str) -> World:
    """Import the toy task that a module defines, named as in Python.

    Raises:
        ConfigError: if there is no such module.
    """
    try:
        return cast(World, import_module(module))
    except ModuleNotFoundError as error:
        raise ConfigError(f"--world is {module}: {error}; name a module that defines one") from None


def counts(world: World, question: str, response: str) -> dict[str, int]:
    """The number of lines of each label in a response, and of those `missing`.

    Each operation needs an essential line.
    """
    labels = Counter(world.label_lines(question, response))
    found = {label: labels[label] for label in world.LABELS}
    if "missing" in world.MEASURES:
        found["missing"] = world.level(question) - found["essential"]
    return found


def rendered(question: str) -> str:
    """The prompt as the chat template renders it, including the opened thought."""
    return f"<|user|>{question}<|assistant|><think>\n"


def closed(thought: Sequence[str], answer: str) -> str:
    """A response: the lines of a thought, then the answer."""
    return "".join(thought) + CLOSE + answer + "}" + EOS


def thought_lines(response: str) -> list[str]:
    """The non-empty lines before `</think>`."""
    return [line for line in response.split("</think>")[0].splitlines() if line.strip()]


def rechecks(lines: Sequence[str], probability: float, rng: random.Random) -> Iterator[str]:
    """Re-checks of randomly chosen lines; with this probability there is another one."""
    while rng.random() < probability:
        yield rng.choice(RECHECKS) + rng.choice(lines)
