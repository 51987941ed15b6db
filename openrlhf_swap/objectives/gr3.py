"""GR3: a reward is divided by what a response is longer than its group.

After the formula of its paper (arXiv 2603.10535) as others quote it: no code of the authors was found. The paper
calibrates alpha by the advantages of a run; here it is a setting.
"""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch


class GR3(Objective):
    """R = r/(1 + alpha L/mean L), r the grader's reward and the mean the group's; normalised in the group."""

    class Settings(FlagSettings):
        """Flags `--swap.gr3.*`."""

        alpha: float = setting(0.33, "how much the length counts", "use at least 0", ge=0)

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """A multiple of the reward: nothing is to be gained by a short wrong answer."""
        lengths = batch.lengths.double()
        return batch.rewards / (1 + self.settings.alpha * lengths / lengths.mean(-1, keepdim=True))
