"""Scores of one response, a forward for each prefix: slow and obvious, so everything else is tested against it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.scoring.answer import AnswerBranch


@torch.no_grad()
def score_per_prefix(
    model: Callable[..., Any], input_ids: Tensor, prefix_lengths: Sequence[int], branch: AnswerBranch
) -> Tensor:
    """l_k = mean over the answer's tokens of log p(token | prefix_k, template, answer so far), at temperature 1.

    Takes a causal language model, called as `model(input_ids, logits_to_keep=n).logits`, the (T,) int64 ids of prompt
    and response without padding, and K+1 numbers of tokens, prompt included. Returns (K+1,) float32, or float64 for a
    float64 model.
    """
    answer = torch.tensor(branch.ids, device=input_ids.device)
    values = []
    for length in prefix_lengths:
        sequence = torch.cat([input_ids[:length], answer]).unsqueeze(0)
        logits = model(sequence, logits_to_keep=len(branch.ids) + 1).logits[0, :-1]
        values.append(mean_logprob(logits, branch))
    return torch.stack(values)


def mean_logprob(logits: Tensor, branch: AnswerBranch) -> Tensor:
    """The mean over the scored tokens, from the (Q, V) logits that predict each token of the branch."""
    ids = torch.tensor(branch.ids, device=logits.device)
    scored = torch.tensor(branch.scored, device=logits.device)
    logprobs = widen(logits).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return logprobs[scored].mean()


def widen(logits: Tensor) -> Tensor:
    """At least float32: a log-softmax over a large vocabulary is not safe in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
