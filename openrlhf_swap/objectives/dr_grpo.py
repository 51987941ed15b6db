"""Dr. GRPO: the group's mean is taken off, and nothing divides.

After its code (commit dfca49d). There the loss is a sum over tokens divided by a constant: against OpenRLHF's mean
over tokens that is one factor a step, which the learning rate has to carry.
"""

from __future__ import annotations

from openrlhf_swap.objectives.base import Objective


class DrGRPO(Objective):
    """A = c - p, p the group's accuracy."""

    normaliser = "centre"
    needs_all_groups = False
