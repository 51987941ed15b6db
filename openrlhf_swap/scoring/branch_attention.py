"""Attention of many answer branches over the responses that they branch off, in one call a layer.

A branch sees a prefix of its response, and itself. All branches of a forward are attended at once: their queries side
by side, the keys of the longest prefix with the branches' own keys after them, and a mask that leaves each branch its
prefix and its own tokens. The query heads that share a key head are stacked into the query axis, so no key is copied
for them.

It is registered with transformers as an attention implementation of its own, and replaces the model's (flash-attention
takes no such mask) for the length of one forward. What a family adds to attention comes from the layer: a window,
sinks, a cap on the scores, keys and values that are cached as one latent vector, or shared with an earlier layer.

Shapes: R responses, M branches of each, Q tokens of a branch, H heads, of which H_kv for keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, Cache, PretrainedConfig

NAME = "swap_branches"
ALIGNED = 16  # with another number of keys, torch would copy the mask for its kernel at each call
MAX_SCORES = 2**27  # attention scores held at a time where torch's own attention cannot be used: 512 MiB in float32


@dataclass(frozen=True)
class Branches:
    """Where the branches of a forward stand.

    Attributes:
        cache: all keys and values of rows of T tokens, also of layers with a window; only read.
        rows: (R,) int64, the cache's row of each response.
        origins: (R,) int64, where in that row the response's position 0 is.
        starts: (R,) int64, position of each response's first token that is not padding.
        ends: of each response, where its branches' prefixes end: a branch sees the positions before its end, and its
            own tokens take the positions from there.
        padded_ends: (R, M) int64, the same; 0 for the idle branches of a response that has fewer than M.
        width: Q.
    """

    cache: Cache
    rows: Tensor
    origins: Tensor
    starts: Tensor
    ends: Sequence[Sequence[int]]
    padded_ends: Tensor
    width: int
    _masks: dict[tuple[Any, ...], Tensor] = field(default_factory=dict)

    def seen_positions(self, window: int | None) -> range:
        """The positions from the first to the last that any branch sees before itself, more in front of them to align.

        There is always one, because latent vectors cannot be expanded out of none.
        """
        own, stop = self.padded_ends.shape[1] * self.width, max(1, *chain(*self.ends))
        first = 0 if window is None else max(0, min(chain(*self.ends)) - window + 1)
        count = -(-(stop - first + own) // ALIGNED) * ALIGNED - own
        return range(stop - count, stop)

    def gather(self, part: Tensor, positions: range) -> Tensor:
        """(R, heads, positions, D) of keys or values (rows, heads, T, D): a copy. The mask hides what is not there."""
        places = self.origins[:, None] + torch.arange(positions.start, positions.stop, device=part.device)
        return part[self.rows[:, None], :, places.clamp(0, part.shape[2] - 1)].transpose(1, 2)

    def mask(self, window: int | None, stacked: int, dtype: torch.dtype) -> Tensor:
        """Additive (R, 1, stacked*M*Q, keys): seen positions, and the branches. Built once a forward."""
        key = (window, stacked, dtype)
        if key not in self._masks:
            ends, device = self.padded_ends[..., None, None], self.padded_ends.device  # (R, M, 1, 1)
            positions = self.seen_positions(window)
            position = torch.arange(positions.start, positions.stop, device=device)
            token = torch.arange(self.width, device=device)[:, None]
            prefix = (position >= self.starts[:, None, None, None]) & (position < ends)
            prefix = prefix.expand(-1, -1, self.width, -1)
            own = torch.ones(self.width, self.width, dtype=torch.bool, device=device).tril()
            if window is not None:
                prefix, own = prefix & (position > ends + token - window), own.triu(1 - window)
            own = torch.kron(torch.eye(ends.shape[1], dtype=torch.bool, device=device), own).expand(len(ends), -1, -1)
            seen = torch.cat([prefix.flatten(1, 2), own], dim=-1)
            mask = torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, -torch.inf)
            self._masks[key] = mask.unsqueeze(1).repeat(1, 1, stacked, 1)
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
    branches: Branches,
    caps_scores: bool,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Attend the branches of R responses.

    Args:
        module: the attention layer; its `layer_idx` says which layer of the cache is its own.
        query: (R, H, M*Q, D), the branches of a response one after the other.
        key: (R, H_kv, M*Q, D), the branches' own.
        value: (R, H_kv, M*Q, D_v).
        attention_mask: not used.
        scaling: of the scores.
        sliding_window: tokens that a token sees, itself included; None for all.
        s_aux: (H,) the score of each head's sink, which takes attention and gives nothing.
        softcap: the scores are squashed to +- this.
        branches: where they stand.
        caps_scores: whether the attention that this one replaces applies `softcap`.
        unused: what else a model passes to its attention.

    Returns:
        (R, M*Q, H, D_v), and no weights.
    """
    responses, heads, own, _ = key.shape
    positions = branches.seen_positions(sliding_window)
    seen = _cached(module, branches, positions)
    # Under autocast, values can be narrower than queries and keys.
    keys, values = (
        torch.cat([before, new], dim=2).to(query.dtype) for before, new in zip(seen, (key, value), strict=True)
    )
    stacked = query.reshape(responses, heads, -1, query.shape[-1])  # (R, H_kv, S*M*Q, D)
    mask = branches.mask(sliding_window, stacked.shape[2] // own, query.dtype)
    cap = softcap if caps_scores else None
    if s_aux is None and cap is None:
        output = nn.functional.scaled_dot_product_attention(stacked, keys, values, attn_mask=mask, scale=scaling)
    else:
        sinks = None if s_aux is None else s_aux.view(heads, -1).repeat_interleave(own, dim=1)[None, :, :, None]
        output = _attend_in_slices(stacked, keys, values, mask, scaling, sinks, cap)
    return output.reshape(responses, -1, own, output.shape[-1]).transpose(1, 2), None


def _attend_in_slices(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float | None,
    sinks: Tensor | None,
    cap: float | None,
) -> Tensor:
    """What torch's own attention cannot do: sinks (1, H_kv, S*M*Q, 1) and a cap. Slices keep the scores few."""
    size = max(1, MAX_SCORES // (len(query) * query.shape[1] * keys.shape[2]))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    parts = []
    for first in range(0, query.shape[2], size):
        chosen = slice(first, first + size)
        scores = query[:, :, chosen] @ keys.transpose(-1, -2) * scale
        if cap is not None:
            scores = (scores / cap).tanh() * cap
        scores = scores + mask[:, :, chosen]
        if sinks is not None:
            scores = torch.cat([scores, sinks[:, :, chosen].to(scores.dtype).expand(len(scores), -1, -1, -1)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        parts.append(weights[..., : keys.shape[2]] @ values)
    return torch.cat(parts, dim=2)


@contextmanager
def attending_branches(config: PretrainedConfig, branches: Branches) -> Iterator[None]:
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


def _cached(module: Any, branches: Branches, positions: range) -> tuple[Tensor, Tensor]:
    """Keys and values (R, H_kv, positions, D) that the branches see before themselves."""
    number: int = module.layer_idx
    layers: list[Any] = branches.cache.layers
    if number >= len(layers):  # the last layers of some models reuse the keys of an earlier one of their kind
        kinds = module.config.layer_types
        number = max(earlier for earlier in range(len(layers)) if kinds[earlier] == kinds[number])
    keys, values = (branches.gather(part, positions) for part in (layers[number].keys, layers[number].values))
    if hasattr(module, "expand_kv"):  # latent attention caches what keys and values are made from
        keys, values = module.expand_kv(keys, values)
    return keys, values
