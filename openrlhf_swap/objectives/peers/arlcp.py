"""ARLCP, after github.com/ZeweiYu1/ARLCP (commit c8ff44f)."""

import re

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.objectives.base import Batch, Objective, setting
from openrlhf_swap.objectives.group_statistics import leave_one_out
from openrlhf_swap.objectives.peers.formats import right_answers

_REFLECTION = re.compile(
    r"\b(?:wait|alternatively|hold on|another thought|verify|think again|but|however|alternative"
    r"|check|double-check|oh|hmm)\b",
    re.IGNORECASE,
)


class ARLCP(Objective):
    """A = N/(N-1) (R - mean), R = c - w sigmoid(z of reflections) - (.2 - w) sigmoid(z of length).

    Both z are taken among the group's correct responses, and are 0 without a spread. w is .05 for
    up to 40 reflections, .1 for up to 80, else .15.
    """

    normaliser = "centre"
    penalty: float = setting(0.2, "most that a correct answer can lose", gt=0, lt=1)

    def correct(self, batch: Batch) -> Tensor:
        return right_answers(batch, self.config)

    def rewards(self, batch: Batch) -> Tensor:
        reflections = batch.each_text(lambda text: len(_REFLECTION.findall(text)))
        share = torch.full_like(reflections, 0.75)
        share[reflections <= 80] = 0.5
        share[reflections <= 40] = 0.25
        for_reflections = standardise(reflections, batch.correct).sigmoid()
        for_length = standardise(batch.lengths, batch.correct).sigmoid()
        lost = self.penalty * (share * for_reflections + (1 - share) * for_length)
        return leave_one_out(torch.where(self.correct(batch), 1 - lost, 0.0))
