"""How much a response exceeds its group's target length, and which steps pay for it.

Shapes: G groups, N responses a group, K steps (padded at the end). Masks are True where a step exists.
"""

from __future__ import annotations

import torch
from torch import Tensor


def target_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """L_target: the median length of each group's correct responses.

    The median of an even count is the mean of the middle two (`torch.median` would take the lower one).

    Args:
        lengths: (G, N) tokens of each response, the end token included.
        correct: (G, N) bool.

    Returns:
        (G,) float64, NaN for a group without a correct response.
    """
    return torch.where(correct, lengths.double(), torch.nan).nanquantile(0.5, dim=-1)


def penalty_masses(lengths: Tensor, correct: Tensor, length_coef: float) -> Tensor:
    """P = lambda (L - L_target)/L_target for correct responses over the target, else 0 (Eq. penalty_mass).

    Args:
        lengths: (G, N) tokens.
        correct: (G, N) bool.
        length_coef: lambda.

    Returns:
        (G, N) float64, at least 0.
    """
    target = target_lengths(lengths, correct).unsqueeze(-1)
    pays = correct & (lengths > target) & (target > 0)
    return torch.where(pays, length_coef * (lengths.double() - target) / target, 0.0)


def penalty_weights(local_gains: Tensor, step_mask: Tensor, tau: float | Tensor) -> Tensor:
    """Weights w = softmax(-g/tau): the steps with the least gain pay the most (Eq. weights).

    Args:
        local_gains: (..., K) g in nats.
        step_mask: (..., K) bool.
        tau: tau in nats: a number, or a tensor that broadcasts to (..., 1); infinity gives uniform weights.

    Returns:
        (..., K) weights that sum to 1 over the steps that exist; all 0 where there is none.
    """
    if step_mask.shape[-1] == 0:
        return torch.zeros_like(local_gains)
    least = torch.where(step_mask, local_gains, torch.inf).amin(dim=-1, keepdim=True)
    # The least gain is subtracted before the division, so that no tau can overflow.
    scores = torch.where(step_mask, (least - local_gains) / tau, -torch.inf)
    return torch.where(step_mask, scores.softmax(dim=-1), 0.0)
