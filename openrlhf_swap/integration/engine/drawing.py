"""Drawing tokens on a CPU: one random number a token, not one for each entry of the vocabulary."""

from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p


def draw_tokens(
    sampler: Any,
    logits: Tensor,
    generators: dict[int, torch.Generator],
    top_k: Tensor | None,
    top_p: Tensor | None,
) -> tuple[Tensor, Tensor | None]:
    """Stand for `TopKTopPSampler.forward_cpu`, which draws B x V exponential numbers on one core.

    A token is the first at which the cumulative probability reaches a uniform draw.

    Args:
        sampler: vLLM's, which knows the log-probabilities that are asked for.
        logits: (B, V), divided by the temperature; changed in place by `top_k` and `top_p`.
        generators: the generator of each row that has a seed.
        top_k: (B,) limits, or None.
        top_p: (B,) limits, or None.

    Returns:
        The tokens (B,), and the log-probabilities (B, V) after the limits if vLLM returns those.
    """
    logits = apply_top_k_top_p(logits, top_k, top_p)
    cumulative = logits.softmax(-1, dtype=torch.float32).cumsum(-1)
    draws = torch.rand(len(logits), 1)
    for row, generator in generators.items():
        draws[row].uniform_(generator=generator)
    # Above 0, and at most the last sum: a token without probability is never the first to reach it.
    reached = (1 - draws) * cumulative[:, -1:]
    # Where all sums are NaN none reaches the draw, and there is no token behind the last.
    tokens = torch.searchsorted(cumulative, reached).flatten().clamp(max=logits.shape[1] - 1)
    if sampler.logprobs_mode == "processed_logprobs":
        return tokens, logits.log_softmax(-1, dtype=torch.float32)
    return tokens, None
