"""The earlier name of `adapters`, for rooms that still import from it."""

from openrlhf_swap.integration.policy.adapters import without_adapters

__all__ = ["without_adapters"]
