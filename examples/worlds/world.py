"""What a world is: a task with a policy that overthinks it, small enough for a CPU.

A world is one module of this folder with the names of `World`, and a policy in `policies/`, which `train_policy.sh`
makes. Data, training, evaluation and comparison take its name, `--world` or WORLD.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Protocol

from openrlhf_swap.errors import ConfigError

NAMES = ("addition", "decomposition")

CLOSE = "</think>\n\n**Final Answer**\n\\boxed{"
EOS = "<|end|>"
RECHECKS = ("check ", "wait ", "again ")
FILLERS = ("hmm\n", "let me think\n")
RESTART = "let me start over\n"
VERIFY = "let me verify\n"


class Problem(Protocol):
    """Something with one right answer. Hashable."""

    @property
    def question(self) -> str:
        """What the user asks."""

    @property
    def answer(self) -> str:
        """The right answer, digits."""


class World(Protocol):
    """A module that is a world."""

    WORDS: Sequence[str]  # one token each, beside single bytes
    LABELS: Sequence[str]  # what a line of a thought may be
    STEP_TOKENS: int  # M at which a line is a step
    THINK: str  # one token that begins a thought where the policy may as well answer at once

    def problems(self, seed: int, exclude: frozenset[Problem] = frozenset()) -> Iterator[Problem]:
        """An endless, seeded stream of distinct problems, none of them in `exclude`."""

    def supervised_row(self, problem: Problem, rng: random.Random, probe_share: float) -> tuple[str, str]:
        """What the base policy reads, and what it is taught to write behind it."""

    def overthinking_trace(self, problem: Problem, rng: random.Random) -> str:
        """A response as the base policy is taught to write it."""

    def label_lines(self, question: str, response: str) -> list[str]:
        """What each line before `</think>` is for, of LABELS."""

    def level(self, question: str) -> int:
        """How many operations the problem needs."""


def load(name: str) -> World:
    """The world of this name.

    Raises:
        ConfigError: for a name that no world has.
    """
    if name not in NAMES:
        raise ConfigError(f"--world is {name}; use {' or '.join(NAMES)}")
    return import_module(name)


def rendered(question: str) -> str:
    """The prompt as the chat template renders it, the opened thought included."""
    return f"<|user|>{question}<|assistant|><think>\n"


def closed(thought: Sequence[str], answer: str) -> str:
    """A response: lines of a thought, and the answer."""
    return "".join(thought) + CLOSE + answer + "}" + EOS


def thought_lines(response: str) -> list[str]:
    """The lines before `</think>` that have something in them."""
    return [line for line in response.split("</think>")[0].splitlines() if line.strip()]


def rechecks(lines: Sequence[str], probability: float, rng: random.Random) -> Iterator[str]:
    """Repetitions of any of these lines, each but the first as likely as the one before it allows."""
    while rng.random() < probability:
        yield rng.choice(RECHECKS) + rng.choice(lines)
