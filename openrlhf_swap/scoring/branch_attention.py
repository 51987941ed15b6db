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
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PretrainedConfig

NAME = "swap_branches"
CPU_BLOCK = 4  # branches of a response in one call on a CPU
ALIGNED = 16  # keys: with other numbers of them, torch copies the mask for its kernel at each call
MOST_SCORES = 2**27  # attention scores held at a time where torch's own attention cannot be used: 512 MiB in float32


@dataclass(frozen=True)
class Block:
    """Branches in the slots `first .. stop - 1` of every response.

    Attributes:
        first: slot of a branch.
        stop: the slot after the last one.
        reach: tokens of the longest of their prefixes.
        keys: tokens of that prefix and of the block's branches, rounded up.
    """

    first: int
    stop: int
    reach: int
    keys: int


@dataclass(frozen=True)
class BranchLayout:
    """Where the branches of a forward stand. Shapes: R responses, N branches in all, M of the response with the most.

    Attributes:
        cache: all keys and values of rows of T tokens, also of layers with a window; only read.
        rows: (R,) int64, the cache's row of each response.
        origins: (R,) int64, where in the cache's row the response's position 0 is; None where each has its own row.
        starts: (R,) int64, position of each response's first token that is not padding.
        ends: of each response, ascending, where its branches' prefixes end: a branch sees the positions before its
            end, and its own tokens take the positions from there.
        width: Q, tokens of a branch.
    """

    cache: Cache
    rows: Tensor
    origins: Tensor | None
    starts: Tensor
    ends: Sequence[Sequence[int]]
    width: int
    _masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)
    _ends: Tensor = field(init=False)
    _slots: Tensor | None = field(init=False)

    def __post_init__(self) -> None:
        device, most = self.starts.device, self.most
        # Sent to the device once, so that no layer waits for it.
        object.__setattr__(self, "_ends", torch.tensor(self._aligned()).to(device, non_blocking=True))
        slots = [most * row + slot for row, ends in enumerate(self.ends) for slot in range(most - len(ends), most)]
        whole = len(slots) == len(self.ends) * most
        object.__setattr__(self, "_slots", None if whole else torch.tensor(slots).to(device, non_blocking=True))

    def _aligned(self) -> list[list[int]]:
        """The ends with 0 in front where a response has fewer branches: the last slot has the longest prefixes."""
        return [[0] * (self.most - len(ends)) + list(ends) for ends in self.ends]

    @property
    def most(self) -> int:
        """M."""
        return max(map(len, self.ends))

    @property
    def reach(self) -> int:
        """Tokens of the longest prefix; 1 at least, because latent vectors cannot be expanded out of none."""
        return max(1, *(ends[-1] for ends in self.ends))

    def blocks(self, size: int) -> list[Block]:
        """The branches in blocks of `size` of each response, those with the longest prefixes first."""
        made = []
        for first in reversed(range(0, self.most, size)):
            stop = min(first + size, self.most)
            reach = max(max(ends[first:stop]) for ends in self._aligned())
            made.append(Block(first, stop, reach, _rounded_up(reach + (stop - first) * self.width)))
        return made

    def padded(self, part: Tensor) -> Tensor:
        """(heads, N*Q, D) of the branches -> (R, heads, M, Q, D), zero where a response has fewer branches."""
        part = part.reshape(part.shape[0], -1, self.width, part.shape[-1])
        if self._slots is not None:
            empty = part.new_zeros(part.shape[0], len(self.ends) * self.most, *part.shape[2:])
            part = empty.index_copy(1, self._slots, part)
        return part.view(part.shape[0], len(self.ends), self.most, *part.shape[2:]).transpose(0, 1)

    def unpadded(self, part: Tensor) -> Tensor:
        """(R, heads, M, Q, D) -> (1, N*Q, heads, D), as a model's attention returns it."""
        part = part.permute(0, 2, 3, 1, 4).flatten(0, 1)  # (R*M, Q, heads, D)
        if self._slots is not None:
            part = part[self._slots]
        return part.flatten(0, 1).unsqueeze(0)

    def reached(self, part: Tensor) -> Tensor:
        """(R, H, reach, D) of keys or values (rows, H, T, D): the first positions of each response."""
        if self.origins is None:
            return part[self.rows, :, : self.reach]
        places = self.origins.unsqueeze(-1) + torch.arange(self.reach, device=part.device)
        # The mask hides what belongs to another response.
        return part[0][:, places.clamp(0, part.shape[2] - 1)].transpose(0, 1)

    def mask(self, block: Block, window: int | None, stacked: int, dtype: torch.dtype) -> Tensor:
        """Additive (R, 1, stacked*m*Q, keys) of a block of m branches: their prefixes, and the branches themselves."""
        key = (block, window, stacked, dtype)
        if key not in self._masks:
            ends = self._ends[:, block.first : block.stop, None, None]  # (R, m, 1, 1)
            place = torch.arange(self.width, device=ends.device)
            position = torch.arange(block.reach, device=ends.device)
            prefix = (position >= self.starts[:, None, None, None]) & (position < ends)
            prefix = prefix.expand(-1, -1, self.width, -1)
            if window is not None:
                prefix = prefix & (position > ends + place[:, None] - window)
            own = _causal(self.width, window, ends.device)
            count = block.stop - block.first
            alone = torch.eye(count, dtype=torch.bool, device=ends.device)[:, None, :, None]
            own = (alone & own[None, :, None, :]).reshape(1, count * self.width, -1)
            seen = torch.cat([prefix.flatten(1, 2), own.expand(len(ends), -1, -1)], dim=-1)
            seen = nn.functional.pad(seen, (0, block.keys - seen.shape[-1]))
            self._masks[key] = _additive(seen, dtype).unsqueeze(1).repeat(1, 1, stacked, 1)
        return self._masks[key]

    def window_places(self, window: int) -> Tensor:
        """(R, M, W) the positions before each branch that its window may reach; negative ones do not exist."""
        count = _rounded_up(min(window, self.reach) + self.width) - self.width
        return self._ends[..., None] + torch.arange(-count, 0, device=self.starts.device)

    def window_mask(self, window: int, stacked: int, dtype: torch.dtype) -> Tensor:
        """Additive (R*M, 1, stacked*Q, W + Q): of the window's keys and the branch's own, those that a token sees."""
        key = (window, stacked, dtype)
        if key not in self._masks:
            places, own = self.window_places(window), _causal(self.width, window, self.starts.device)
            token = self._ends[..., None] + torch.arange(self.width, device=places.device)
            exists = (places >= self.starts[:, None, None]).unsqueeze(-2)
            seen = exists & (places.unsqueeze(-2) > token.unsqueeze(-1) - window)
            seen = torch.cat([seen, own.expand(*seen.shape[:2], -1, -1)], dim=-1)
            self._masks[key] = _additive(seen.flatten(0, 1), dtype).unsqueeze(1).repeat(1, 1, stacked, 1)
        return self._masks[key]


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


def _causal(width: int, window: int | None, device: torch.device) -> Tensor:
    """(Q, Q) bool: the tokens of its own branch that a token sees."""
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    return causal if window is None else causal.triu(1 - window)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, minus infinity elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _rounded_up(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
