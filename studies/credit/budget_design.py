"""The test at three budgets: its tasks, arms and seeds, and the rule that chooses strengths.

`budgets.py` trains what is written here, and `budget_results.py` compares it. The predictions are
in studies/records/predictions.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import pandas as pd


@dataclass(frozen=True)
class Task:
    """How a world is trained, and which of its problems are easy, middle and hard."""

    rate: float  # learning rate
    max_steps: int  # K; on chains a step for each line
    easy: int  # the most needed lines of an easy problem
    middle: int  # the most of a middle one; hard problems need more


TASKS = {
    "chains": Task(rate=6e-4, max_steps=72, easy=4, middle=9),
    "words": Task(rate=3e-4, max_steps=25, easy=6, middle=8),
    "decomposition": Task(rate=3e-4, max_steps=25, easy=6, middle=9),
}
ALL = "all"
HARD = "hard"
PARTS = (ALL, "easy", "middle", HARD)  # of the held-out problems
FIRST_BUDGETS = (1024, 3072)  # responses in training; the primary comparison is made at these
LAST_BUDGETS = (2048,)
BUDGETS = FIRST_BUDGETS + LAST_BUDGETS
ONLY = "-"  # the strength of an arm that has one
BASE = "base"  # the arm of a policy before any training
# Arm -> its strengths: theta, lambda of outcome_only, a percentile of the base's lengths.
PRIMARY_ARMS = {
    "grpo": (ONLY,),
    "outcome_only": ("0.3", "1", "3"),
    "laser_d": (ONLY,),
    "own": ("1", "2", "4"),
    "needed": ("0.5", "1", "2"),
}
OTHER_ARMS = {
    "limit": ("p50", "p75", "p90", "stages"),
    "sum_tau1": ("0.3", "0.6", "1"),
    "sum_uniform": ("0.3", "0.6", "1"),
    "labels": ("1", "2"),
}
ARMS = {**PRIMARY_ARMS, **OTHER_ARMS}
CHOICE_SEEDS = (1, 2, 3)
FIRST_SEEDS = tuple(range(401, 407))
LAST_SEEDS = tuple(range(407, 413))
TEST_SEEDS = FIRST_SEEDS + LAST_SEEDS
LOST = 0.01  # accuracy that a strength may lose against GRPO, in the rule that chooses it
KEYS = ["task", "arm", "strength", "budget", "seed"]


@dataclass(frozen=True)
class Run:
    """What tells one training from all others."""

    task: str
    arm: str
    strength: str
    budget: int
    seed: int


@dataclass(frozen=True)
class Phase:
    """Trainings of some arms in one task with one budget: GRPO's, the choice's, the test's."""

    arms: tuple[str, ...]
    task: str
    budget: int
    seeds: tuple[int, ...]  # of the test

    def grpo_runs(self) -> Iterator[Run]:
        """GRPO with the seeds that choose, at the gate's budget and at the phase's own.

        The gate compares it with the base, the rule compares strengths with it.
        """
        for budget in sorted({min(FIRST_BUDGETS), self.budget}):
            for seed in CHOICE_SEEDS:
                yield Run(self.task, "grpo", ONLY, budget, seed)

    def choice_runs(self) -> Iterator[Run]:
        """Every strength of the arms with the seeds that choose."""
        for seed in CHOICE_SEEDS:
            for arm in self.arms:
                for strength in ARMS[arm]:
                    yield Run(self.task, arm, strength, self.budget, seed)

    def test_runs(self, runs: pd.DataFrame) -> Iterator[Run]:
        """The chosen strength of each arm, seed after seed."""
        choice = Choice(runs, self.task, self.budget)
        strengths = {arm: choice.strength(arm) for arm in self.arms}
        for seed in self.seeds:
            for arm, strength in strengths.items():
                yield Run(self.task, arm, strength, self.budget, seed)


def phases() -> Iterator[Phase]:
    """All phases, in the order in which a lack of time does the least harm.

    The budgets of the primary comparison come first, of these its arms, and of these half of the
    test's seeds.
    """
    all_budgets = (FIRST_BUDGETS, LAST_BUDGETS)
    all_arms = (PRIMARY_ARMS, OTHER_ARMS)
    all_seeds = (FIRST_SEEDS, LAST_SEEDS)
    # The last of them, the task, changes from one combination to the next.
    for budgets, arms, seeds, task in product(all_budgets, all_arms, all_seeds, TASKS):
        for budget in budgets:
            yield Phase(tuple(arms), task, budget, seeds)


class Gate:
    """Whether GRPO ends as accurate as the base in a task, at the least budget."""

    def __init__(self, runs: pd.DataFrame, task: str) -> None:
        """`runs` has a row a training, as `budgets.py` writes it."""
        own = runs[runs.task == task]
        is_choice = (own.budget == min(FIRST_BUDGETS)) & own.seed.isin(CHOICE_SEEDS)
        grpo = own[(own.arm == "grpo") & is_choice]
        self.base = float(own[own.arm == BASE][f"{ALL} accuracy"].mean())
        self.grpo = float(grpo[f"{ALL} accuracy"].mean())
        self.seeds = len(grpo)

    @property
    def passes(self) -> bool:
        """Whether GRPO is as accurate."""
        return self.grpo >= self.base


class Choice:
    """What the seeds of the choice say about the strengths in one task with one budget.

    The rule: of all that lose at most LOST of accuracy against GRPO, the shortest; the most
    accurate where all lose more. Both numbers are means over all held-out problems and the seeds.
    """

    def __init__(self, runs: pd.DataFrame, task: str, budget: int) -> None:
        """`runs` has a row a training, as `budgets.py` writes it."""
        of_choice = runs[runs.seed.isin(CHOICE_SEEDS)]
        own = of_choice[(of_choice.task == task) & (of_choice.budget == budget)]
        measures = own.groupby(["arm", "strength"])[[f"{ALL} accuracy", f"{ALL} tokens"]].mean()
        self.means = measures.set_axis(["accuracy", "tokens"], axis=1)
        self.seeds = own.groupby(["arm", "strength"]).seed.nunique()

    def is_whole(self, arm: str) -> bool:
        """Whether every strength of the arm, and GRPO, was trained with all seeds of the choice."""
        needed = [("grpo", ONLY)]
        for strength in ARMS[arm]:
            needed.append((arm, strength))
        return all(self.seeds.get(pair, 0) == len(CHOICE_SEEDS) for pair in needed)

    def strength(self, arm: str) -> str:
        """The strength that the rule chooses for an arm."""
        return self._choose(self.means.loc[arm])

    def better(self, arms: Sequence[str]) -> str:
        """The arm that the rule chooses among arms, each with its own chosen strength."""
        rows = {arm: self.means.loc[(arm, self.strength(arm))] for arm in arms}
        return self._choose(pd.DataFrame.from_dict(rows, orient="index"))

    def _choose(self, candidates: pd.DataFrame) -> str:
        """The name of the row that the rule chooses, from rows of mean accuracy and tokens."""
        least_accuracy = self.means.loc[("grpo", ONLY), "accuracy"] - LOST
        # Rounded, so that exactly a point less is within a point.
        is_accurate = candidates.accuracy.round(9) >= round(least_accuracy, 9)
        if not is_accurate.any():
            return str(candidates.accuracy.idxmax())
        return str(candidates[is_accurate].tokens.idxmin())


def part_of(needed_lines: int, task: Task) -> str:
    """Whether a problem with so many needed lines is easy, middle or hard."""
    if needed_lines <= task.easy:
        return "easy"
    return "middle" if needed_lines <= task.middle else HARD
