"""How much each step helped: gains in the log-probability of the reference answer.

Shapes: `...` any leading axes, K steps (padded at the end). Masks are True where a step exists.
"""

from __future__ import annotations

import torch
from torch import Tensor


def monotone_gains(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """Progress beyond the best so far: Delta_k = max(0, l_k - max_{j<k} l_j) (Eq. monotone_gain).

    Args:
        answer_logprobs: (..., K+1) l_0..l_K in nats per answer token.
        step_mask: (..., K) bool.

    Returns:
        (..., K) Delta, 0 where there is no step.
    """
    best_before = answer_logprobs.cummax(dim=-1).values[..., :-1]
    gains = (answer_logprobs[..., 1:] - best_before).clamp(min=0)
    return torch.where(step_mask, gains, 0.0)


def local_gains(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """Change over one step: g_k = l_k - l_{k-1}. Shapes as in `monotone_gains`."""
    return torch.where(step_mask, answer_logprobs.diff(dim=-1), 0.0)
