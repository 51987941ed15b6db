"""NeMo-RL's length penalty by pass rate (commit 1643600)."""

from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import extremes, group_mean
from openrlhf_swap.rollouts.rollout import Batch


class PassRatePenalty(Objective):
    """R = c max(0, 1 - weight p L/longest correct L), p the group's accuracy; in the group."""

    weight: float = setting(
        0.2, "most that a correct answer can lose; NeMo-RL: 0, in its test .2", ge=0
    )

    def rewards(self, batch: Batch) -> Tensor:
        _, longest = extremes(batch.lengths, batch.correct)  # arbitrary where none is correct
        share = batch.lengths / longest.clamp(min=1)
        kept = 1 - self.weight * group_mean(batch.correct) * share
        return batch.correct * kept.clamp(min=0)
