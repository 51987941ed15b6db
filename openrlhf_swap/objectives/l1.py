r"""L1-Exact and L1-Max: the prompt asks for a number of thinking tokens, and the reward says how well it was met.

After github.com/cmu-l3/l1 (2025-05-13). L1-Max's slope is the first release's 1/1000, which made the published models;
its paper says 0.0003. L1-Max is meant to start from an L1-Exact policy.
"""

from __future__ import annotations

import random
import re

from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.rollout import Rollout

INSTRUCTION = r" Let's think step by step and output the final answer within \boxed{}."
EXACT, MAXIMUM = " Think for {n} tokens.", " Think for maximum {n} tokens."
_BUDGET = re.compile(r" Think for (maximum )?(\d+) tokens\.")


def budget(rollout: Rollout) -> tuple[int, bool]:
    """N of the last budget in a rollout's prompt, and whether it is a maximum."""
    maximum, n = _BUDGET.findall(rollout.prompt)[-1]
    return int(n), bool(maximum)


class L1Exact(Objective):
    """R = c - alpha |n - L|, normalised in the group; c only behind a closed thought."""

    needs_closed_thought = True

    boxes_answers = True

    class Settings(FlagSettings):
        """Flags `--swap.l1_exact.*`."""

        shortest: int = setting(100, "smallest budget, in tokens")
        longest: int = setting(4000, "largest; drawn uniformly once a row")
        alpha: float = setting(0.0003, "taken off for each token of difference")
        instruction: str = setting(INSTRUCTION, "goes before the budget, instead of openrlhf-swap prepare's")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        shortest, longest = self.settings.shortest, self.settings.longest
        if not 1 <= shortest <= longest:
            found = f"--swap.{self.name}.shortest is {shortest}, .longest {longest}"
            raise ConfigError(f"{found}; use 1 <= shortest <= longest")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """Ask for n tokens, in an objective's wording."""
        wording, n = self._wording(rng), rng.randint(self.settings.shortest, self.settings.longest)
        return problem.removesuffix(SUFFIX) + self.settings.instruction + wording.format(n=n)

    def _wording(self, rng: random.Random) -> str:
        return EXACT

    def rewards(self, batch: Batch) -> Tensor:
        """C - alpha |n - L|."""
        return self.correct(batch).double() - self.settings.alpha * (self._budgets(batch) - batch.lengths).abs()

    def _budgets(self, batch: Batch) -> Tensor:
        return batch.each(lambda rollout: budget(rollout)[0])


class L1Max(L1Exact):
    """R = c clip(slope (n - L) + delta, 0, 1) for half of the rows, L1-Exact's for the other half."""

    class Settings(L1Exact.Settings):
        """Flags `--swap.l1_max.*`."""

        slope: float = setting(0.001, "of the reward in the tokens that are left")
        delta: float = setting(0.5, "reward of a correct answer that uses its budget up")
        exact_share: float = setting(0.5, "share of the rows with an exact budget")

    settings: Settings

    def _wording(self, rng: random.Random) -> str:
        return EXACT if rng.random() < self.settings.exact_share else MAXIMUM

    def rewards(self, batch: Batch) -> Tensor:
        """By the wording of each prompt."""
        left = self._budgets(batch) - batch.lengths
        within = self.correct(batch) * (self.settings.slope * left + self.settings.delta).clamp(0, 1)
        is_maximum = batch.each(lambda rollout: budget(rollout)[1]).bool()
        return within.where(is_maximum, super().rewards(batch))
