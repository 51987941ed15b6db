"""All prefixes of a response scored in one pass, with any cache that can be copied and gone on from.

The row runs in segments that end where steps end. After each, the answer branch runs on a copy of the cache. Nothing
is asked of the model but that it can go on from its cache; what it keeps there, keys, windows or states, is its own
affair. The segments are run one after the other and a row at a time, so the pass cannot be the one that gives the
log-probabilities, and a GPU is less busy than with `shared_prefix.py`: this is for models that it cannot serve.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import mean_logprob


@torch.no_grad()
def score_segments(
    model: Callable[..., Any],
    config: PretrainedConfig,
    input_ids: Tensor,
    prefix_lengths: Sequence[int],
    branch: AnswerBranch,
) -> Tensor:
    """l_k of every prefix; arguments and result as `score_per_prefix`, and the model's configuration."""
    answer = torch.tensor(branch.ids, device=input_ids.device)
    cache = DynamicCache(config=config)
    values = {}
    for start, stop in pairwise([0, *sorted(set(prefix_lengths))]):
        output = _go_on(model, cache, input_ids[start:stop], start, 1)
        branched = _go_on(model, copy.deepcopy(cache), answer, stop, 0)
        logits = torch.cat([output.logits[0], branched.logits[0, :-1]])
        values[stop] = mean_logprob(logits, branch)
    return torch.stack([values[length] for length in prefix_lengths])


def _go_on(model: Callable[..., Any], cache: DynamicCache, ids: Tensor, position: int, logits_to_keep: int) -> Any:
    positions = torch.arange(position, position + len(ids), device=ids.device)
    return model(
        ids.unsqueeze(0),
        position_ids=positions.unsqueeze(0),
        past_key_values=cache,
        use_cache=True,
        logits_to_keep=logits_to_keep,
    )
