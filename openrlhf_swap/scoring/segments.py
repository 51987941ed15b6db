"""Score all prefixes of a response in one pass, with any cache that can be copied and continued.

The row runs in segments that end where steps end. After each, the answer branch runs on a copy of the cache. The model
only has to continue from its cache; whether that holds keys, windows or states does not matter. Segments run one after
the other, one row at a time, so the pass cannot double as the log-probability pass, and it uses a GPU less well than
`shared_prefix.py`: it is for models that the latter cannot handle.
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
    input_ids: Tensor,
    prefix_lengths: Sequence[int],
    branch: AnswerBranch,
    config: PretrainedConfig,
) -> Tensor:
    """l_k of every prefix; arguments and result as in `score_per_prefix`, plus the model's configuration."""
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
