"""L1-Exact and L1-Max, after github.com/cmu-l3/l1 (2025-05-13)."""

import random
import re

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Objective, Rollout, setting
from openrlhf_swap.rewards.answers import SUFFIX

INSTRUCTION = r" Let's think step by step and output the final answer within \boxed{}."
EXACT = " Think for {n} tokens."
MAXIMUM = " Think for maximum {n} tokens."
_BUDGET = re.compile(r".* Think for (maximum )?(\d+) tokens\.", re.DOTALL)


def asked_budget(rollout: Rollout) -> int | None:
    """N of the last budget in a prompt; None without one."""
    found = _BUDGET.match(rollout.prompt)
    return int(found[2]) if found else None


def asks_maximum(rollout: Rollout) -> bool:
    """Whether the last budget in a prompt is a maximum."""
    found = _BUDGET.match(rollout.prompt)
    return found is not None and found[1] is not None


class L1Exact(Objective):
    """R = c - alpha |n - L|, in the group; c only after a closed thought."""

    penalises_long_wrong = True
    boxes_answers = True
    rewrites_evaluation = True
    limits_thoughts = True
    shortest: int = setting(100, "smallest budget, in tokens", ge=1)
    longest: int = setting(4000, "largest; drawn uniformly once a row")
    alpha: float = setting(0.0003, "subtracted for each token of difference")
    instruction: str = setting(
        INSTRUCTION, "goes before the budget, instead of openrlhf-swap prepare's"
    )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        wording = self._wording(rng)
        budget = rng.randint(self.shortest, max(self.shortest, self.longest))
        return problem.removesuffix(SUFFIX) + self.instruction + wording.format(n=budget)

    def _wording(self, rng: random.Random) -> str:
        return EXACT

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        penalty = self.alpha * self._left(batch).abs()
        return self.correct(batch).double() - penalty

    def _left(self, batch: Batch) -> Tensor:
        """(G, N) n - L, negative for a response beyond its budget."""
        return batch.each(lambda rollout: asked_budget(rollout) or 0) - batch.lengths


class L1Max(L1Exact):
    """R = c clip(slope (n - L) + delta, 0, 1) for half of the rows, L1-Exact's for the others."""

    slope: float = setting(0.001, "how much each token that is left adds to the reward")
    delta: float = setting(0.5, "reward of a correct answer that uses its budget up")
    exact_share: float = setting(0.5, "share of the rows with an exact budget")

    def _wording(self, rng: random.Random) -> str:
        return EXACT if rng.random() < self.exact_share else MAXIMUM

    def rewards(self, batch: Batch) -> Tensor:
        within = self.slope * self._left(batch) + self.delta
        of_maximum = self.correct(batch) * within.clamp(0, 1)
        is_maximum = batch.each(asks_maximum).bool()
        return torch.where(is_maximum, of_maximum, super().rewards(batch))
