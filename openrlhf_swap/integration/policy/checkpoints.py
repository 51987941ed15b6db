"""The earlier name of `safe_loading`, for rooms that still import from it."""

from openrlhf_swap.integration.policy.safe_loading import forbid_pickles

__all__ = ["forbid_pickles"]
