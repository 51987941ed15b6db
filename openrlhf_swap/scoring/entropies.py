"""The mean entropy of each step's tokens, out of the entropies of a forward over the rows.

A token's entropy is that of the distribution from which it was drawn. Shapes: B rows of T tokens.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from openrlhf_swap.scoring.answer import LOGITS, ScoreRequest, row_positions, widen


def mean_entropies(entropies: Tensor, requests: Sequence[ScoreRequest]) -> list[Tensor]:
    """(K,) float64 H_1..H_K of each request in nats, on the CPU.

    Takes (B, T-1) entropies: at t, of the distribution of token t + 1. What a step observed was not
    drawn, and does not count.
    """
    means = []
    for request in requests:
        row = entropies[request.row].cpu().double()
        starts = request.prefix_ends[:-1]  # these tokens predict the first token of each step
        spans = zip(starts, request.own_ends, strict=True)
        of_steps = [row[start:end].mean() for start, end in spans]
        means.append(torch.stack(of_steps))
    return means


@torch.no_grad()
def read_entropies(
    model: nn.Module,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    temperature: float,
) -> list[Tensor]:
    """Run a forward and return (K,) float64 H_1..H_K of each request, at that temperature.

    Takes a causal language model, (B, T) int64 token ids, padded on either side, and their mask, 1
    for tokens. Where a forward with entropies runs anyway, use `mean_entropies`.
    """
    output = model(
        sequences,
        attention_mask=attention_mask,
        position_ids=row_positions(attention_mask),
        use_cache=False,
    )
    predicting = output.logits[:, :-1]
    parts = []
    for part in torch.split(predicting, LOGITS, dim=1):
        scaled = widen(part) / temperature
        log_probs = scaled.log_softmax(-1)
        shares = log_probs.exp() * log_probs
        parts.append(-shares.sum(-1))
    entropies = torch.cat(parts, dim=1)
    return mean_entropies(entropies, requests)
