"""Attention of many answer branches over one response, without a mask over the whole of it.

The branches of a response have nested prefixes. They are attended from the longest prefix to the shortest, and each
writes its own keys and values behind its prefix, over tokens that no later branch sees. Every branch is then an
ordinary attention over adjacent keys: no key is read that the branch may not see (but padding), and the query heads
that share a key head are stacked, so that no key is copied for them. The responses of a batch go side by side: a
level holds the j-th longest prefix of every response that has so many.

It is registered with transformers as an attention implementation of its own, so it replaces whichever one the model
runs with (flash-attention takes no such mask) for the length of one forward.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, DynamicCache, PretrainedConfig

NAME = "swap_branches"


@dataclass(frozen=True)
class Level:
    """One branch of each of n responses.

    Attributes:
        first: these are the responses `first .. first + n - 1`.
        ends: (n,) int64; each branch sees the positions before its end, and itself.
        reach: the largest end.
    """

    first: int
    ends: Tensor
    reach: int


@dataclass(frozen=True)
class BranchLayout:
    """Where the branches of a forward stand. Shapes: R responses, N branches in all, T tokens of a cached row.

    Attributes:
        cache: keys and values of rows of T tokens; only read.
        rows: (R,) int64, the cache's row of each response.
        starts: (R,) int64, position of each response's first token that is not padding.
        levels: the N branches in order; the ends of a response must fall from level to level.
        width: Q, tokens of a branch.
        dtype: of the attention.
    """

    cache: DynamicCache
    rows: Tensor
    starts: Tensor
    levels: tuple[Level, ...]
    width: int
    dtype: torch.dtype

    @cached_property
    def masks(self) -> list[Tensor]:
        """Of each level (n, 1, Q, reach + Q), additive: the prefix, and the branch itself causally."""
        return [self._mask(level) for level in self.levels]

    def _mask(self, level: Level) -> Tensor:
        device = level.ends.device
        starts = self.starts[level.first : level.first + len(level.ends)]
        positions = torch.arange(level.reach + self.width, device=device)
        last = level.ends.unsqueeze(-1) + torch.arange(self.width, device=device)
        seen = (positions >= starts[:, None, None]) & (positions <= last.unsqueeze(-1))
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=device)
        return mask.masked_fill_(~seen, -torch.inf).unsqueeze(1)


def branch_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    branches: BranchLayout,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend N branches of Q tokens.

    Args:
        module: the attention layer; its `layer_idx` says which layer of the cache is its own.
        query: (1, H, N*Q, D), the branches one after the other.
        key: (1, H_kv, N*Q, D), the branches' own.
        value: as `key`.
        attention_mask: not used.
        scaling: of the scores.
        branches: the layout; the model passes it on from its own arguments.

    Returns:
        (1, N*Q, H, D), and no weights.
    """
    _, heads, tokens, size = query.shape
    shared, width = key.shape[1], branches.width
    count, stacked = tokens // width, heads // shared
    layer = branches.cache.layers[module.layer_idx]
    keys, values = _with_room(layer.keys, branches), _with_room(layer.values, branches)

    query = query.view(shared, stacked, count, width, size).permute(2, 0, 1, 3, 4)
    key, value = (part.view(shared, count, width, size).transpose(0, 1) for part in (key, value))
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    done = 0
    for level, mask in zip(branches.levels, branches.masks, strict=True):
        rows = slice(level.first, level.first + len(level.ends))
        chosen = slice(done, done + len(level.ends))
        done = chosen.stop
        own = level.ends.unsqueeze(-1) + torch.arange(width, device=level.ends.device)
        own = own[:, None, :, None].expand(-1, shared, -1, size)
        keys[rows].scatter_(2, own, key[chosen])
        values[rows].scatter_(2, own, value[chosen])
        attended = nn.functional.scaled_dot_product_attention(
            query[chosen].flatten(2, 3),
            keys[rows, :, : mask.shape[-1]],
            values[rows, :, : mask.shape[-1]],
            attn_mask=mask.repeat(1, 1, stacked, 1),
            scale=scaling,
        )
        output[chosen] = attended.unflatten(2, (stacked, width))
    return output.permute(0, 3, 1, 2, 4).reshape(1, tokens, heads, size), None


@contextmanager
def attending_branches(config: PretrainedConfig) -> Iterator[None]:
    """Run the model's forwards with `branch_attention`."""
    configured = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = configured


def _with_room(cached: Tensor, branches: BranchLayout) -> Tensor:
    """(R, H_kv, reach + Q, D): a copy of what the branches can reach, with room for the longest one's own."""
    reach = max(level.reach for level in branches.levels)
    return nn.functional.pad(cached[branches.rows, :, :reach], (0, 0, 0, branches.width))


AttentionInterface.register(NAME, branch_attention)
