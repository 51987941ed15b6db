"""Scores of one response: a forward for each prefix, or segments.

`score_per_prefix` is the reference, slow and obvious: everything else is tested against it. `score_segments` takes one
pass, with any cache that can be copied and continued, whether it holds keys, windows or states: it is for models that
`shared_prefix.py` cannot handle. Segments run one after the other, so the pass cannot double as the log-probability
pass, and it uses a GPU less well.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig

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


@torch.no_grad()
def score_segments(
    model: Callable[..., Any],
    input_ids: Tensor,
    prefix_lengths: Sequence[int],
    branch: AnswerBranch,
    config: PretrainedConfig,
) -> Tensor:
    """As `score_per_prefix`, from the model's configuration, too.

    The row runs in segments that end where steps end. After each, the branch runs on a copy of the cache.
    """
    answer = torch.tensor(branch.ids, device=input_ids.device)
    cache = DynamicCache(config=config)
    values = {}
    for start, stop in pairwise([0, *sorted(set(prefix_lengths))]):
        output = _extend(model, cache, input_ids[start:stop], start, 1)
        branched = _extend(model, copy.deepcopy(cache), answer, stop, 0)
        logits = torch.cat([output.logits[0], branched.logits[0, :-1]])
        values[stop] = mean_logprob(logits, branch)
    return torch.stack([values[length] for length in prefix_lengths])


def _extend(model: Callable[..., Any], cache: DynamicCache, ids: Tensor, position: int, logits_to_keep: int) -> Any:
    positions = torch.arange(position, position + len(ids), device=ids.device)
    return model(
        ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=logits_to_keep,
    )


def mean_logprob(logits: Tensor, branch: AnswerBranch) -> Tensor:
    """The mean over the scored tokens, from the (Q, V) logits that predict each token of the branch."""
    ids = torch.tensor(branch.ids, device=logits.device)
    scored = torch.tensor(branch.scored, device=logits.device)
    logprobs = widen(logits).log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return logprobs[scored].mean()


def widen(logits: Tensor) -> Tensor:
    """At least float32: a log-softmax over a large vocabulary is not safe in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
