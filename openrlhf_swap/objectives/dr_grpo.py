"""Dr. GRPO, after its code (commit dfca49d)."""

from openrlhf_swap.objectives.base import Objective


class DrGRPO(Objective):
    """A = c - p, p the group's accuracy."""

    normaliser = "centre"
    needs_all_groups = False
