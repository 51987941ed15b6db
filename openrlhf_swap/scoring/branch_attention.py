"""Attention of many answer branches over the responses that they branch off, in one call a layer.

A branch sees a prefix of its response, and itself. All branches of a batch of responses are attended at once: their
queries side by side, the keys of the longest prefix with the branches' own keys written after them, and a mask that
leaves each branch its prefix and its own tokens. The query heads that share a key head are stacked into the query
axis, so no key is copied for them. In a layer with a window each branch gets a copy of the few keys in its window.

On a GPU a call with idle keys costs less than many calls: one call fills the device, and half of the scores that it
computes are masked. On a CPU that half would be paid for, so there the branches go in blocks of a few, from the
longest prefixes to the shortest: a block's own keys overwrite tokens that no later block sees.

It is registered with transformers as an attention implementation of its own, and replaces the model's (flash-attention
takes no such mask) for the length of one forward. What a family adds to attention comes from the layer: a window,
sinks, a cap on the scores, keys and values that are cached as one latent vector, or shared with an earlier layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PretrainedConfig

from openrlhf_swap.scoring.branch_layout import BranchLayout

NAME = "swap_branches"
CPU_BLOCK = 4  # branches of a response in one call on a CPU
MOST_SCORES = 2**27  # attention scores held at a time where torch's own attention cannot be used: 512 MiB in float32


def branch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    *,
    branches: BranchLayout,
    caps_scores: bool,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend N branches of Q tokens.

    Args:
        module: the attention layer; its `layer_idx` says which layer of the cache is its own.
        query: (1, H, N*Q, D), the branches one after the other.
        key: (1, H_kv, N*Q, D), the branches' own.
        value: (1, H_kv, N*Q, D_v).
        attention_mask: not used.
        scaling: of the scores.
        sliding_window: tokens that a token sees, itself included; None for all.
        s_aux: (H,) the score of each head's sink, which takes attention and gives nothing.
        softcap: the scores are squashed to +- this.
        branches: the layout.
        caps_scores: whether the attention that this one replaces applies `softcap`.
        unused: what else a model passes to its attention.

    Returns:
        (1, N*Q, H, D_v), and no weights.
    """
    sinks = None if s_aux is None else s_aux.view(key.shape[1], -1)
    rules = ScoreRules(scaling, sinks, softcap if caps_scores else None)
    queries = branches.padded(query[0])
    queries = queries.reshape(len(queries), key.shape[1], -1, *queries.shape[2:])  # (R, H_kv, S, M, Q, D)
    own = [branches.padded(part[0]) for part in (key, value)]
    cached = _cached(module, branches)
    if sliding_window is not None and sliding_window < branches.reach:
        output = _attend_windows(queries, cached, own, sliding_window, branches, rules)
    else:
        output = _attend_prefixes(queries, cached, own, sliding_window, branches, rules)
    return branches.unpadded(output.flatten(1, 2)), None


@dataclass(frozen=True)
class ScoreRules:
    """What a family does to attention scores: their scale, sinks (H_kv, S), and a cap."""

    scaling: float | None
    sinks: Tensor | None
    cap: float | None

    @property
    def are_plain(self) -> bool:
        """Whether torch's own attention does all of it."""
        return self.sinks is None and self.cap is None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """One attention of (n, H_kv, S*q, D) queries."""
        # Under autocast, values can be narrower than queries and keys.
        key, value = key.to(query.dtype), value.to(query.dtype)
        if self.are_plain:
            return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.scaling)
        scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if self.scaling is None else self.scaling)
        if self.cap is not None:
            scores = (scores / self.cap).tanh() * self.cap
        scores = scores + mask
        if self.sinks is not None:
            sinks = self.sinks.repeat_interleave(query.shape[2] // self.sinks.shape[1], dim=1)[None, :, :, None]
            scores = torch.cat([scores, sinks.to(scores.dtype).expand(len(scores), -1, -1, -1)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
        return weights[..., : key.shape[-2]] @ value


def _attend_prefixes(
    queries: Tensor,
    cached: Sequence[Tensor],
    own: Sequence[Tensor],
    window: int | None,
    branches: BranchLayout,
    rules: ScoreRules,
) -> Tensor:
    """(R, H_kv, S, M, Q, D_v): all branches of a block against the keys of the longest prefix, in one call."""
    stacked, width = queries.shape[2], branches.width
    size = branches.most
    if queries.device.type == "cpu":
        size = CPU_BLOCK
    elif not rules.are_plain:
        most = queries.shape[:3].numel() * width * (branches.reach + size * width)  # scores of one branch a response
        size = min(size, max(1, MOST_SCORES // most))
    blocks = branches.blocks(size)
    space = max(0, max(block.keys for block in blocks) - branches.reach)
    keys, values = (nn.functional.pad(part, (0, 0, 0, space)) for part in cached)
    parts = []
    for block in blocks:
        chosen = slice(block.first, block.stop)
        for kept, new in zip((keys, values), own, strict=True):
            tokens = new[:, :, chosen].flatten(2, 3)
            kept[:, :, block.reach : block.reach + tokens.shape[2]] = tokens
        asking = queries[:, :, :, chosen].flatten(2, 4)
        mask = branches.mask(block, window, stacked, queries.dtype)
        attended = rules.attend(asking, keys[:, :, : block.keys], values[:, :, : block.keys], mask)
        parts.append(attended.view(*attended.shape[:2], stacked, -1, width, attended.shape[-1]))
    return torch.cat(parts[::-1], dim=3) if len(parts) > 1 else parts[0]


def _attend_windows(
    queries: Tensor,
    cached: Sequence[Tensor],
    own: Sequence[Tensor],
    window: int,
    branches: BranchLayout,
    rules: ScoreRules,
) -> Tensor:
    """(R, H_kv, S, M, Q, D_v): each branch against a copy of the keys in its window."""
    rows, _, stacked, most, width = queries.shape[:5]
    places = branches.window_places(window).clamp(min=0)
    first = torch.arange(rows, device=places.device)[:, None, None]
    parts = []
    for kept, new in zip(cached, own, strict=True):
        near = kept[first, :, places].permute(0, 1, 3, 2, 4)  # (R, M, H_kv, W, D)
        parts.append(torch.cat([near, new.transpose(1, 2).to(near.dtype)], dim=3).flatten(0, 1))
    asking = queries.permute(0, 3, 1, 2, 4, 5).flatten(0, 1).flatten(2, 3)  # (R*M, H_kv, S*Q, D)
    mask = branches.window_mask(window, stacked, queries.dtype)
    attended = rules.attend(asking, parts[0], parts[1], mask)
    attended = attended.view(rows, most, -1, stacked, width, attended.shape[-1])
    return attended.permute(0, 2, 3, 1, 4, 5)


@contextmanager
def attending_branches(config: PretrainedConfig, branches: BranchLayout) -> Iterator[None]:
    """Run the model's forwards with `branch_attention`."""
    config = config.get_text_config()
    configured = config._attn_implementation
    # SDPA is the one implementation of transformers that leaves the cap out.
    attention = partial(branch_attention, branches=branches, caps_scores=configured != "sdpa")
    AttentionInterface.register(NAME, attention)
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = configured
        # transformers' registry lives as long as the process, and would keep the branches' keys, values and masks.
        AttentionInterface.register(NAME, branch_attention)


def _cached(module: Any, branches: BranchLayout) -> tuple[Tensor, Tensor]:
    """Keys and values (R, H_kv, reach, D) that the branches reach: copies."""
    layer: Any = branches.cache.layers[_cached_layer(module, branches.cache)]
    keys, values = (branches.reached(part) for part in (layer.keys, layer.values))
    if hasattr(module, "expand_kv"):  # latent attention caches what keys and values are made from
        keys, values = module.expand_kv(keys, values)
    return keys, values


def _cached_layer(module: Any, cache: Cache) -> int:
    """The layer of the cache that holds a module's keys; the last layers of some models reuse an earlier one's."""
    own: int = module.layer_idx
    if own < len(cache.layers):
        return own
    kinds = module.config.layer_types
    return max(earlier for earlier in range(len(cache.layers)) if kinds[earlier] == kinds[own])
