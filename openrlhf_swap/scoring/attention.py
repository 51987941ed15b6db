"""The attention of branches: a masked call a layer for each group, or one with varying lengths.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each
of H_kv key heads, D numbers of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branches import Call, Layout, attention_calls

MAX_SCORES = 2**27  # attention scores held at a time where SDPA cannot be used: 512 MiB in float32
# With another number of keys in a row of the mask, torch would copy it for its kernel at each call.
ALIGNED = 16
MAX_WIDTH = 256  # numbers of a head that the kernel for varying lengths takes
# Attention that caps scores; SDPA, and what is built on it, leaves the cap out.
CAPPING = ("eager", "flash", "flex")

# Attends queries (H, tokens, D) to keys and values (H_kv, keys, D) under an additive mask
# (tokens, keys); gives (tokens, H, D_v).
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# The keys and values of the rows, (heads, B*T, D) each, by attention layer.
RowKeys = dict[nn.Module, tuple[Tensor, Tensor]]


class Parts(NamedTuple):
    """Queries, keys or values: (heads, B*T, D) of the rows and (heads, n, D) of the branches."""

    rows: Tensor
    behind: Tensor


class BranchAttention:
    """The attention of one forward: the rows are attended as always, and branches beside them.

    The queries of a call meet the keys that any of its branches sees, and a mask leaves each its
    own. What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.
    """

    def __init__(
        self,
        tokens: int,
        layout: Layout,
        keys: RowKeys | None = None,
    ) -> None:
        """Take T, the tokens of a row, and where the branches stand.

        `keys` gets the keys and values of the rows. A forward without rows (T is 0) reads there
        what an earlier one has left.
        """
        self._tokens = tokens
        self._layout = layout
        self._keys = keys
        self._calls = attention_calls(layout, on_cpu=layout.position.device.type == "cpu")
        self._masks: dict[Any, Tensor] = {}
        # Long branches would have large masks; a kernel for varying lengths needs none. Layers with
        # a window have masks all the same: a window counts positions, and those of a branch can
        # leave out some between the rows' keys and its own, which the kernel would count.
        self._varying = None if tokens else VaryingLengths(layout)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let a model attend rows and branches inside the block.

        The rows are attended as the model is configured to, and with their own mask.
        """
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(
            interface: Any,
            name: str,
            eager: Callable[..., Any],
        ) -> Callable[..., Any]:
            attend_rows = get_interface(interface, name, eager)
            return partial(self._attend, attend_rows, eager, name.startswith(CAPPING))

        def get_mask_of_rows(interface: Any, name: str) -> Callable[..., Any]:
            return partial(self._mask_of_rows, get_mask(interface, name))

        with (
            replaced(AttentionInterface, "get_interface", get),
            replaced(AttentionMaskInterface, "__getitem__", get_mask_of_rows),
        ):
            yield

    def _mask_of_rows(
        self, make: Callable[..., Any], attention_mask: Tensor | None, **options: Any
    ) -> Any:
        if not self._tokens:
            return None
        if attention_mask is not None:
            attention_mask = attention_mask[:, : self._tokens]
        options |= {"q_length": self._tokens, "kv_length": self._tokens}
        return make(attention_mask=attention_mask, **options)

    def _attend(
        self,
        attend_rows: Callable[..., Any],
        eager: Callable[..., Any],
        caps_scores: bool,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """(B, T + n/B, H, D_v) and no weights.

        `query` is (B, H, T + n/B, D); `key` and `value` have H_kv heads.
        """
        scaling = options.get("scaling")
        window = options.get("sliding_window")
        has_cap = caps_scores and options.get("softcap") is not None
        is_special = has_cap or options.get("s_aux") is not None
        queries = self._parts(query).behind
        keys, values = self._keys_and_values(module, key, value, queries.dtype)
        plain = window is None and not is_special
        if self._varying is not None and plain and fits_kernel(queries):
            behind = self._varying.attend(queries, keys, values, scaling)
        else:
            attend: Attend = partial(_attend_by_sdpa, scaling)
            if is_special:
                attend = partial(_attend_in_slices, partial(eager, module, **options))
            behind = self._attend_branches(attend, queries, keys, values, window)
        if not self._tokens:
            return behind[None].to(query.dtype), None
        if options.get("position_ids") is not None:
            # Flash-attention reads from it where packed responses begin.
            options["position_ids"] = options["position_ids"][..., : self._tokens]
        rows = [part[:, :, : self._tokens] for part in (query, key, value)]
        output, _ = attend_rows(module, *rows, attention_mask, **options)
        behind = behind.view(len(output), -1, *behind.shape[1:]).to(output.dtype)
        return torch.cat([output, behind], dim=1), None

    def _keys_and_values(
        self,
        module: nn.Module,
        key: Tensor,
        value: Tensor,
        dtype: torch.dtype,
    ) -> tuple[Parts, Parts]:
        # Under autocast, values can be narrower than queries and keys.
        keys = self._parts(key.to(dtype))
        values = self._parts(value.to(dtype))
        if self._keys is None:
            return keys, values
        if self._tokens:
            self._keys[module] = (keys.rows, values.rows)
        row_keys, row_values = self._keys[module]
        return Parts(row_keys, keys.behind), Parts(row_values, values.behind)

    def _parts(self, part: Tensor) -> Parts:
        """Split (B, heads, T + n/B, D), laid end to end; both are views if B is 1."""
        by_head = part.transpose(0, 1)
        rows = by_head[:, :, : self._tokens]
        behind = by_head[:, :, self._tokens :]
        return Parts(rows.flatten(1, 2), behind.flatten(1, 2))

    def _attend_branches(
        self,
        attend: Attend,
        all_queries: Tensor,
        keys: Parts,
        values: Parts,
        window: int | None,
    ) -> Tensor:
        """(n, H, D_v), from (H, n, D) queries."""
        outputs = []
        for call in self._calls:
            queries = all_queries[:, call.queries]
            seen = call.columns(window)
            seen_keys, seen_values = (
                torch.cat([part.rows[:, seen], part.behind[:, call.own]], dim=1)
                for part in (keys, values)
            )
            mask = self.mask(call, window, queries.dtype)
            outputs.append(attend(queries, seen_keys, seen_values, mask))
        return torch.cat(outputs)

    def mask(
        self,
        call: Call,
        window: int | None,
        dtype: torch.dtype,
    ) -> Tensor:
        """Additive (tokens, keys) for one call, built once a forward.

        The keys are the columns that the call sees, and then the call's own tokens.
        """
        which = (call.queries.start, window, dtype)
        if which not in self._masks:
            visible = self._visible(call, window)
            tokens, keys = visible.shape
            size = (tokens, keys + -keys % ALIGNED)
            mask = torch.full(size, -torch.inf, dtype=dtype, device=visible.device)
            self._masks[which] = mask[:, :keys].masked_fill_(visible, 0.0)
        return self._masks[which]

    def _visible(self, call: Call, window: int | None) -> Tensor:
        """(tokens, keys) bool."""
        layout = self._layout
        position = layout.position[call.queries, None]
        first = layout.first[call.queries, None]
        end = layout.end[call.queries, None]
        own_position = layout.position[call.own]
        columns = call.columns(window)
        column = torch.arange(columns.start, columns.stop, device=position.device)
        of_rows = (column >= first) & (column < end)
        of_branches = layout.branch[call.queries, None] == layout.branch[call.own]
        of_branches &= position >= own_position
        if window is not None:
            of_rows &= position - (column - first) < window
            of_branches &= position - own_position < window
        return torch.cat([of_rows, of_branches], dim=-1)


def fits_kernel(queries: Tensor) -> bool:
    """Whether torch's kernel for varying lengths takes these queries, on this device."""
    half = queries.dtype in (torch.bfloat16, torch.float16)
    if not (queries.is_cuda and half and queries.shape[-1] <= MAX_WIDTH):
        return False
    return torch.cuda.get_device_capability(queries.device) >= (8, 0)


class VaryingLengths:
    """Attention of all branches in one call without masks, by torch's kernel for varying lengths.

    A branch's keys are those of the columns that it sees, and then its own: its queries are the
    last of them, and attention is causal.
    """

    def __init__(self, layout: Layout) -> None:
        """Find the keys of each branch."""
        device = layout.position.device
        lengths = []
        totals = []
        columns: list[int] = []  # -1, -2, .. are the branches' own tokens
        for branch, start in zip(layout.branches, layout.starts, strict=True):
            columns += range(branch.first, branch.end)
            columns += range(-1 - start, -1 - start - branch.length, -1)
            lengths.append(branch.length)
            totals.append(branch.end - branch.first + branch.length)
        self._columns = torch.tensor(columns, device=device)
        self._query_starts = _starts(lengths, device)
        self._key_starts = _starts(totals, device)
        self._longest = (max(lengths), max(totals))

    def attend(
        self,
        queries: Tensor,
        keys: Parts,
        values: Parts,
        scaling: float | None,
    ) -> Tensor:
        """(n, H, D_v), from (H, n, D) queries."""
        width = queries.shape[-1]
        value_width = values.rows.shape[-1]
        kernel_width = max(width, value_width)
        kernel_width += -kernel_width % 8
        output = varlen_attn(
            _widened(queries.transpose(0, 1), kernel_width),
            _widened(self._gathered(keys), kernel_width),
            _widened(self._gathered(values), kernel_width),
            self._query_starts,
            self._key_starts,
            *self._longest,
            scale=width**-0.5 if scaling is None else scaling,
            window_size=(-1, 0),
            enable_gqa=True,
        )
        assert isinstance(output, Tensor)  # a tuple where more was asked for
        return output[..., :value_width]

    def _gathered(self, parts: Parts) -> Tensor:
        """(keys, H_kv, D) of all branches, one after the other."""
        behind_rows = parts.rows.shape[1] - 1 - self._columns
        index = torch.where(self._columns < 0, behind_rows, self._columns)
        return torch.cat(parts, dim=1)[:, index].transpose(0, 1)


def _starts(lengths: Sequence[int], device: torch.device) -> Tensor:
    bounds = list(accumulate(lengths, initial=0))
    return torch.tensor(bounds, dtype=torch.int32, device=device)


def _widened(part: Tensor, width: int) -> Tensor:
    """Zeros, which change no score, fill heads up to a width that the kernel takes."""
    return nn.functional.pad(part, (0, width - part.shape[-1])).contiguous()


def _attend_by_sdpa(
    scaling: float | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """(tokens, H, D_v) by torch's SDPA.

    The S query heads of a key head lie along the batch axis, so nothing is copied for them.
    """
    query = query.view(len(keys), -1, *query.shape[1:]).transpose(0, 1)  # (S, H_kv, tokens, D)
    keys = keys.expand(len(query), -1, -1, -1)
    values = values.expand(len(query), -1, -1, -1)
    attend = nn.functional.scaled_dot_product_attention
    output = attend(query, keys, values, attn_mask=mask, scale=scaling)
    return output.transpose(0, 1).flatten(0, 1).transpose(0, 1)


def _attend_in_slices(
    eager: Callable[..., Any],
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """As `_attend_by_sdpa`, with the family's own attention, for sinks and caps.

    Slices of the queries keep the scores few.
    """
    size = max(1, MAX_SCORES // (len(query) * keys.shape[1]))
    outputs = []
    for part, seen in zip(torch.split(query, size, dim=1), torch.split(mask, size), strict=True):
        output, _ = eager(part[None], keys[None], values[None], seen)
        outputs.append(output[0])
    return torch.cat(outputs)
