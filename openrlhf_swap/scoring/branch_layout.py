"""Where the answer branches of a forward stand, and what each of their tokens may attend to.

Shapes: R responses, N branches in all, M branches of the response with the most, Q tokens of a branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

ALIGNED = 16  # with another number of keys, torch would copy the mask for its kernel at each call


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
    """Where the branches of a forward stand.

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


def _causal(width: int, window: int | None, device: torch.device) -> Tensor:
    """(Q, Q) bool: the tokens of its own branch that a token sees."""
    causal = torch.ones(width, width, dtype=torch.bool, device=device).tril()
    return causal if window is None else causal.triu(1 - window)


def _additive(seen: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, minus infinity elsewhere."""
    return torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(~seen, -torch.inf)


def _rounded_up(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
