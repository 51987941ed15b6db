"""GDPO, after its verl code (commit b080e63)."""

from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import EPS, whitened
from openrlhf_swap.rollouts.rollout import Batch


class GDPO(Objective):
    """A = whiten(GRPO(c) + weight GRPO([L <= L_T])) over the batch's tokens."""

    normaliser = "none"
    target_length: int = setting(4000, "L_T, in tokens", ge=1)
    length_weight: float = setting(1.0, "of the length's advantage beside the answer's")

    def rewards(self, batch: Batch) -> Tensor:
        is_short = batch.lengths <= self.target_length
        answer = outcome_advantages(batch.correct.double(), EPS)
        length = outcome_advantages(is_short.double(), EPS)
        return whitened(answer + self.length_weight * length, batch.lengths)
