"""What a run needs, computed before it starts: memory, compute, disk."""

from openrlhf_swap.sizing.remedies import optimizer_stays

__all__ = ["optimizer_stays"]
