"""GR3, as others quote arXiv 2603.10535."""

from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_statistics import group_mean
from openrlhf_swap.rollouts.rollout import Batch


class GR3(Objective):
    """R = r/(1 + alpha L/mean L), r the grader's reward; in the group."""

    alpha: float = setting(0.33, "how much the length counts", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        relative_length = batch.lengths / group_mean(batch.lengths)
        return batch.rewards / (1 + self.alpha * relative_length)
