"""Attention of many answer branches over one response, without a mask over the whole of it.

The branches of a response have nested prefixes. They are processed from the longest prefix to the shortest, and each
writes its own keys and values right after its prefix, over tokens that no later branch sees. Every branch is then an
ordinary attention over adjacent keys: apart from padding, no key is read that the branch may not see, and query heads
that share a key head are stacked, so that no key is copied for them. The responses of a batch run side by side: a
level holds the j-th longest prefix of every response that has that many.

It is registered with transformers as an attention implementation of its own, so it replaces whichever one the model
uses (flash-attention takes no such mask) during one forward. What a family adds to attention comes from the layer: a
window, sinks, a cap on the scores, keys and values cached as one latent vector or taken from an earlier layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PretrainedConfig

NAME = "swap_branches"


@dataclass(frozen=True)
class Level:
    """One branch of each of n responses.

    Attributes:
        first: the level covers the responses `first .. first + n - 1`.
        ends: (n,) int64; each branch sees the positions before its end, and itself.
        nearest: the smallest end.
        reach: the largest end.
    """

    first: int
    ends: Tensor
    nearest: int
    reach: int


@dataclass(frozen=True)
class BranchLayout:
    """Where the branches of a forward attach. Shapes: R responses, N branches in all, T tokens of a cached row.

    Attributes:
        cache: all keys and values of rows of T tokens, even of layers with a window; read only.
        rows: (R,) int64, the cache's row of each response.
        origins: (R,) int64, where in the cache's row the response's position 0 is: not 0 where a row holds several.
        starts: (R,) int64, position of each response's first token that is not padding.
        levels: the N branches in order; the ends of a response must decrease from level to level.
        width: Q, tokens of a branch.
    """

    cache: Cache
    rows: Tensor
    origins: Tensor | None
    starts: Tensor
    levels: tuple[Level, ...]
    width: int
    _masks: dict[tuple[int, int | None], Tensor] = field(default_factory=dict)

    def reached(self, part: Tensor, reach: int) -> Tensor:
        """(R, H, reach, D) of keys or values (rows, H, T, D): the first positions of each response."""
        if self.origins is None:
            return part[self.rows, :, :reach]
        places = self.origins.unsqueeze(-1) + torch.arange(reach, device=part.device)
        # What belongs to another response is masked out.
        return part[0][:, places.clamp(0, part.shape[2] - 1)].transpose(0, 1)

    def mask(self, number: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """A level's additive mask (n, 1, Q, reach + Q - lowest): the prefix in the window, and the branch itself."""
        if (number, window) not in self._masks:
            level = self.levels[number]
            device = level.ends.device
            starts = self.starts[level.first : level.first + len(level.ends), None, None]
            positions = torch.arange(lowest(level, window), level.reach + self.width, device=device)
            last = (level.ends.unsqueeze(-1) + torch.arange(self.width, device=device)).unsqueeze(-1)
            seen = (positions >= starts) & (positions <= last)
            if window is not None:
                seen &= positions > last - window
            mask = torch.zeros(seen.shape, dtype=dtype, device=device)
            self._masks[number, window] = mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)
        return self._masks[number, window]


def lowest(level: Level, window: int | None) -> int:
    """The first position that a branch of the level may see."""
    return 0 if window is None else max(0, level.nearest + 1 - window)


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
    """Run attention for N branches of Q tokens.

    Args:
        module: the attention layer; its `layer_idx` says which layer of the cache is its own.
        query: (1, H, N*Q, D), the branches one after the other.
        key: (1, H_kv, N*Q, D), the branches' own.
        value: (1, H_kv, N*Q, D_v).
        attention_mask: not used.
        scaling: factor of the scores.
        sliding_window: tokens that a token sees, itself included; None for all.
        s_aux: (H,) the score of each head's sink, which absorbs attention and contributes nothing.
        softcap: the scores are squashed to +- this.
        branches: the layout.
        caps_scores: whether the attention that this one replaces applies `softcap`.
        unused: other arguments that models pass to their attention.

    Returns:
        (1, N*Q, H, D_v), and no weights.
    """
    _, heads, tokens, size = query.shape
    shared, width = key.shape[1], branches.width
    count, stacked = tokens // width, heads // shared
    keys, values = _padded_keys_values(module, branches)
    query = query.view(shared, stacked, count, width, size).permute(2, 0, 1, 3, 4)
    key, value = (part.reshape(shared, count, width, -1).transpose(0, 1) for part in (key, value))
    output = query.new_empty(count, shared, stacked, width, value.shape[-1])
    sinks = None if s_aux is None else s_aux.view(1, shared, stacked, 1, 1).expand(-1, -1, -1, width, -1).flatten(2, 3)
    done = 0
    for number, level in enumerate(branches.levels):
        rows = slice(level.first, level.first + len(level.ends))
        chosen = slice(done, done + len(level.ends))
        done = chosen.stop
        own = (level.ends.unsqueeze(-1) + torch.arange(width, device=level.ends.device))[:, None, :, None]
        for padded, new in ((keys, key), (values, value)):
            padded[rows].scatter_(2, own.expand(-1, shared, -1, padded.shape[-1]), new[chosen].to(padded.dtype))
        seen = slice(lowest(level, sliding_window), level.reach + width)
        mask = branches.mask(number, sliding_window, query.dtype).repeat(1, 1, stacked, 1)
        # Under autocast, values can be narrower than queries and keys.
        reached = [part[rows, :, seen].to(query.dtype) for part in (keys, values)]
        queries = query[chosen].flatten(2, 3)
        attended = _attend(queries, reached[0], reached[1], mask, scaling, sinks, softcap if caps_scores else None)
        output[chosen] = attended.view(-1, shared, stacked, width, value.shape[-1])
    return output.permute(0, 3, 1, 2, 4).reshape(1, tokens, heads, -1), None


def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    scaling: float | None,
    sinks: Tensor | None,
    cap: float | None,
) -> Tensor:
    """One attention; torch's own unless there are sinks or a cap. `sinks`: (1, H_kv, queries, 1)."""
    if sinks is None and cap is None:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    scores = query @ key.transpose(-1, -2) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    if cap is not None:
        scores = (scores / cap).tanh() * cap
    scores = scores + mask
    if sinks is not None:
        scores = torch.cat([scores, sinks.to(scores.dtype).expand(len(scores), -1, -1, -1)], dim=-1)
    weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(value.dtype)
    return weights[..., : key.shape[-2]] @ value


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


def _padded_keys_values(module: Any, branches: BranchLayout) -> tuple[Tensor, Tensor]:
    """Keys and values (R, H_kv, reach + Q, D): copies of what the branches reach, padded for the longest's own."""
    reach = max(1, *(level.reach for level in branches.levels))  # an empty tensor of latent vectors cannot be expanded
    layer: Any = branches.cache.layers[_cached_layer(module, branches.cache)]
    keys, values = (branches.reached(part, reach) for part in (layer.keys, layer.values))
    if hasattr(module, "expand_kv"):  # latent attention caches what keys and values are computed from
        keys, values = module.expand_kv(keys, values)
    keys, values = (nn.functional.pad(part, (0, 0, 0, branches.width)) for part in (keys, values))
    return keys, values


def _cached_layer(module: Any, cache: Cache) -> int:
    """The layer of the cache that holds a module's keys; the last layers of some models reuse an earlier one's."""
    own: int = module.layer_idx
    if own < len(cache.layers):
        return own
    kinds = module.config.layer_types
    return max(earlier for earlier in range(len(cache.layers)) if kinds[earlier] == kinds[own])
