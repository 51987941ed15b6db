"""The mean entropy of each step's tokens, out of the entropies of a forward over the rows.

A token's entropy is that of the distribution from which it was drawn. Shapes: B rows of T tokens.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from openrlhf_swap.scoring.answer import LOGITS, ScoreRequest, row_positions, widen

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def step_entropies(entropies: Tensor, requests: Sequence[ScoreRequest]) -> list[Tensor]:
    """(K,) float64 H_1..H_K of each request in nats, on the CPU.

    Takes (B, T-1) entropies: at t, of the distribution of token t + 1. What a step observed was not
    drawn, and does not count.
    """
    means = []
    for request in requests:
        row = entropies[request.row].cpu().double()
        starts = request.prefix_ends[:-1]  # these tokens predict the first token of each step
        steps = [row[start:end] for start, end in zip(starts, request.own_ends, strict=True)]
        means.append(torch.stack([step.mean() for step in steps]))
    return means


@torch.no_grad()
def read_entropies(
    model: "PreTrainedModel",
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    temperature: float,
) -> list[Tensor]:
    """Run a forward and return (K,) float64 H_1..H_K of each request, at that temperature.

    Takes a causal language model, (B, T) int64 token ids, padded on either side, and their mask, 1
    for tokens. Where a forward with entropies runs anyway, use `step_entropies`.
    """
    positions = row_positions(attention_mask)
    output = model(
        sequences, attention_mask=attention_mask, position_ids=positions, use_cache=False
    )
    parts = []
    for part in torch.split(output.logits[:, :-1], LOGITS, dim=1):
        log_probs = (widen(part) / temperature).log_softmax(-1)
        parts.append(-(log_probs.exp() * log_probs).sum(-1))
    return step_entropies(torch.cat(parts, dim=1), requests)
