"""Step-GRPO, after github.com/davidweidawang/Step-GRPO (commit df76889)."""

import re

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import moments
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.peers.formats import boxed

_WAIT = re.compile(r"(?<![A-Za-z])Wait(?![A-Za-z])")


class StepGRPO(Objective):
    """R = .9 c (1 - beta tanh((k - mu)/mu)) + .1 [box]; k - 1 counts "Wait", mu is the mean k.

    mu is the mean of the group's correct responses. As released, the term of the box is given to
    every response whose box is not empty, also to one without a box.
    """

    boxes_answers = True
    beta: float = setting(
        0.5, "largest share of the reward that many steps lose, or few gain", ge=0, le=1
    )

    def rewards(self, batch: Batch) -> Tensor:
        steps = batch.each_text(lambda text: 1 + len(_WAIT.findall(text)))
        mean = moments(steps, batch.correct).mean
        earned = 1 - self.beta * torch.tanh((steps - mean) / mean)
        answer = torch.where(batch.correct, 0.9 * earned, 0.0)
        return answer + 0.1 * boxed(batch).double()
