"""DECS: what a thought says after its first correct answer earns less, token by token.

After its code (commit 0d12e53; ICLR 2026), where a judge model reads pieces of the thought. Here the judge is a
function, LC-R1's rule by default, so results are not comparable. The released choice of groups by difficulty is left
out.
"""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.extractor import Extractor
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.rollout import Rollout


class DECS(Objective):
    """A_t = (r_t - mean)/sd over the group at the same position; r_t = c (1 + b), 1 + b (1 - L/L_max) where redundant.

    The tokens of a correct response between its first correct answer and the end of its thought are redundant. Behind
    its end a response counts with c (1 + b).
    """

    boxes_answers = True

    outcome_weight = 0.0
    needs_all_groups = False

    class Settings(FlagSettings):
        """Flags `--swap.decs.*`."""

        bonus: float = setting(0.1, "b", "use at least 0", ge=0)
        max_length: int = setting(
            16384, "L_max: the run's longest response, in tokens", "use a number of tokens", ge=1
        )
        extractor: str = setting(
            "openrlhf_swap.objectives.lc_r1:first_right_answer",
            "module:function (thought ids, answer, reader) -> thinking tokens up to the first correct answer, or 0",
        )

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._extract = Extractor(self.settings.extractor, f"--swap.{self.name}.extractor")

    def token_advantages(self, batch: Batch) -> Tensor:
        """The whole advantage."""
        tokens, bonus = int(batch.lengths.max()), self.settings.bonus
        groups = []
        for group in batch.groups:
            rewards = torch.tensor([[rollout.correct * (1 + bonus)] for rollout in group], dtype=torch.float64)
            rewards = rewards.repeat(1, tokens)
            for row, rollout in enumerate(group):
                first, end = self._redundant(rollout, batch)
                rewards[row, first:end] = 1 + bonus * (1 - len(rollout.response_ids) / self.settings.max_length)
            groups.append((rewards - rewards.mean(0)) / (rewards.std(0) + 1e-6))
        return torch.stack(groups)

    def _redundant(self, rollout: Rollout, batch: Batch) -> tuple[int, int]:
        """First redundant token and the one behind the last; the same where there is none."""
        thought = batch.reader.reasoning_length(rollout.response_ids)
        if not rollout.correct:
            return thought, thought
        kept = self._extract(rollout.response_ids[:thought], rollout.answer, batch.reader)
        return kept or thought, thought
