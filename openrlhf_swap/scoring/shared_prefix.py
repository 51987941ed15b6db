"""All prefixes of a response scored in one short forward on top of the usual one.

The K+1 prefixes nest, so one forward over prompt and response computes the keys and values of all of them. A second
forward then runs the K+1 answer branches side by side: branch k sees the response up to e_k and itself, at the
positions that follow e_k.

Each branch starts with a second copy of the prefix's last token. It predicts the branch's first token, so that even
an empty close template needs nothing from the first forward but its keys and values.

The branches run in chunks, in the order of their prefixes, and each chunk is given only the keys that its last prefix
reaches: an early branch does not attend over the masked rest of a long response.

Shapes: B rows, T tokens a row, R rows to score, P prefixes (K+1), Q tokens of a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig
from transformers.cache_utils import DynamicLayer

from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import widen


@dataclass(frozen=True)
class ScoreRequest:
    """One response to score.

    Attributes:
        row: its row in the batch.
        prefix_ends: K+1 positions in the padded row: the last prompt token's, then each step's last token's.
        branch: template and answer.
    """

    row: int
    prefix_ends: tuple[int, ...]
    branch: AnswerBranch


def branching_obstacle(config: PretrainedConfig) -> str | None:
    """Why a model's cache cannot be branched, or None if it can."""
    config = config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    if kinds != {"full_attention"}:
        return f"its layers are of the kinds {sorted(kinds)}"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"it attends within a sliding window of {config.sliding_window} tokens"
    return None


@torch.no_grad()
def score_branches(
    model: Callable,
    cache: DynamicCache,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    max_branch_tokens: int = 4096,
    one_chunk: bool = False,
) -> list[Tensor]:
    """Score the requests on the keys and values of a forward that has already been run.

    Args:
        model: the causal language model that filled `cache`, in eval mode, with an attention that takes a mask.
        cache: keys and values of `sequences`; not changed.
        sequences: (B, T) int64 token ids, padded on either side.
        attention_mask: (B, T), 1 for tokens.
        requests: at most one a row.
        max_branch_tokens: branch tokens run at a time; bounds the memory of the second forward.
        one_chunk: run exactly one second forward, whatever the requests are: for ranks that must keep in step.

    Returns:
        One (K+1,) tensor l_0..l_K a request, float32 (float64 for a float64 model), on the CPU.
    """
    if not requests:
        return []
    rows = torch.tensor([request.row for request in requests], device=sequences.device)
    batch = _BranchBatch.build(requests, sequences[rows], attention_mask[rows].bool())
    everything = len(rows) == len(sequences) and torch.equal(rows, torch.arange(len(sequences), device=rows.device))
    selected = None if everything else rows

    prefixes, width = batch.ends.shape[1], batch.ids.shape[1]
    within_budget = max(1, max_branch_tokens // (len(requests) * width))
    size = prefixes if one_chunk else min(within_budget, math.ceil(prefixes / _worthwhile_chunks(sequences.shape[1])))
    slices = [slice(start, min(start + size, prefixes)) for start in range(0, prefixes, size)]
    scores = torch.cat([_score_chunk(model, cache, selected, batch, part) for part in slices], dim=1).cpu()
    return [row[: len(request.prefix_ends)] for row, request in zip(scores, requests, strict=True)]


@torch.no_grad()
def score_shared_prefix(
    model: Callable, sequences: Tensor, attention_mask: Tensor, requests: Sequence[ScoreRequest], **options: int
) -> list[Tensor]:
    """Both forwards. For callers that do not need the first one's logits; arguments as in `score_branches`."""
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    output = model(sequences, attention_mask=attention_mask, position_ids=positions, use_cache=True, logits_to_keep=1)
    return score_branches(model, output.past_key_values, sequences, attention_mask, requests, **options)


@dataclass(frozen=True)
class _BranchBatch:
    """Padded requests: `ids`, `scored` (R, Q); `ends`, `last_ids`, `positions` (R, P); `visible` (R, T)."""

    ids: Tensor
    scored: Tensor
    ends: Tensor
    last_ids: Tensor
    positions: Tensor
    visible: Tensor

    @classmethod
    def build(cls, requests: Sequence[ScoreRequest], sequences: Tensor, visible: Tensor) -> _BranchBatch:
        device = sequences.device
        width = max(len(request.branch.ids) for request in requests)
        count = max(len(request.prefix_ends) for request in requests)
        ids = torch.zeros(len(requests), width, dtype=torch.int64)
        scored = torch.zeros(len(requests), width, dtype=torch.bool)
        ends = torch.zeros(len(requests), count, dtype=torch.int64)
        for row, request in enumerate(requests):
            ids[row, : len(request.branch.ids)] = torch.tensor(request.branch.ids)
            scored[row, : len(request.branch.ids)] = torch.tensor(request.branch.scored)
            # Rows with fewer prefixes repeat their first one: a row that sees nothing would be NaN.
            ends[row] = request.prefix_ends[0]
            ends[row, : len(request.prefix_ends)] = torch.tensor(request.prefix_ends)
        ends = ends.to(device)
        positions = visible.long().cumsum(-1) - 1
        return cls(
            ids.to(device), scored.to(device), ends, sequences.gather(1, ends), positions.gather(1, ends), visible
        )


def _worthwhile_chunks(tokens: int) -> int:
    """How many chunks save more attention than their start-up costs: one for each 2,000 tokens, at most six."""
    return min(6, max(1, tokens // 2000))


def _prefix_view(cache: DynamicCache, rows: Tensor | None, length: int) -> DynamicCache:
    """A cache over the first `length` positions of the chosen rows; appending to it leaves the original alone."""
    view = DynamicCache()
    for layer in cache.layers:
        part = DynamicLayer()
        part.lazy_initialization(layer.keys, layer.values)
        part.keys, part.values = layer.keys[:, :, :length], layer.values[:, :, :length]
        if rows is not None:
            part.keys, part.values = part.keys[rows], part.values[rows]
        view.layers.append(part)
    return view


def _score_chunk(
    model: Callable, cache: DynamicCache, rows_of_cache: Tensor | None, batch: _BranchBatch, chosen: slice
) -> Tensor:
    """(R, p) scores of the chosen prefixes."""
    ends, last_ids, positions = batch.ends[:, chosen], batch.last_ids[:, chosen], batch.positions[:, chosen]
    rows, count = ends.shape
    width = batch.ids.shape[1]

    # The last branch token predicts nothing that is scored; the prefix's last token takes its place in front.
    inputs = torch.cat([last_ids.unsqueeze(-1), batch.ids[:, None, :-1].expand(-1, count, -1)], dim=-1)
    offsets = torch.arange(width, device=ends.device)
    first = int(batch.scored.any(0).int().argmax())
    kept = (torch.arange(count, device=ends.device)[:, None] * width + offsets[first:]).flatten()

    reach = int(ends.max())
    output = model(
        inputs.flatten(1),
        attention_mask=_branch_mask(batch.visible[:, :reach], ends, width, cache.layers[0].keys.dtype),
        position_ids=(positions.unsqueeze(-1) + offsets).flatten(1),
        past_key_values=_prefix_view(cache, rows_of_cache, reach),
        use_cache=True,
        logits_to_keep=kept,
    )

    logits = output.logits.view(rows, count, width - first, -1)
    targets = batch.ids[:, None, first:].expand(-1, count, -1)
    logits = widen(logits)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)
    scored = batch.scored[:, None, first:]
    return torch.where(scored, logprobs, 0.0).sum(-1) / scored.sum(-1)


def _branch_mask(visible: Tensor, ends: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(R, 1, p*Q, T + p*Q) additive mask: the prefix before its last token, and the branch itself causally."""
    rows, count = ends.shape
    keys = torch.arange(visible.shape[1], device=ends.device)
    prefix = (keys < ends.unsqueeze(-1)) & visible.unsqueeze(1)
    prefix = prefix.unsqueeze(2).expand(-1, -1, width, -1).flatten(1, 2)
    causal = torch.ones(width, width, dtype=torch.bool, device=ends.device).tril()
    branches = torch.block_diag(*[causal] * count).expand(rows, -1, -1)
    allowed = torch.cat([prefix, branches], dim=-1).unsqueeze(1)
    return torch.zeros(allowed.shape, dtype=dtype, device=ends.device).masked_fill_(~allowed, torch.finfo(dtype).min)
