"""The attention of branches: a masked call a layer for each group, or one with varying lengths.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each
of H_kv key heads, D numbers of a head.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface

from openrlhf_swap.packages.kernels import Bounds, attend_sequences, takes_sequences
from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branches import Call, Layout, attention_calls

MAX_SCORES = 2**27  # attention scores held at a time where SDPA cannot be used: 512 MiB in float32
# Keys in a row of the mask; otherwise torch would copy the mask for its kernel at each call.
MASK_MULTIPLE = 16
# Attention that caps scores; SDPA, and what is built on it, leaves the cap out.
CAPPING = ("eager", "flash", "flex")

# The keys and values of the rows, (heads, B*T, D) each, by attention layer.
RowKeys = dict[nn.Module, tuple[Tensor, Tensor]]


class Parts(NamedTuple):
    """Queries, keys or values: (heads, B*T, D) of the rows and (heads, n, D) of the branches."""

    rows: Tensor
    behind: Tensor

    def seen(self, columns: slice, own: slice) -> Tensor:
        """The keys or values of some columns of the rows, then of some tokens of the branches.

        (heads, keys, D) with as many keys as the two slices have.
        """
        of_rows = self.rows[:, columns]
        of_branches = self.behind[:, own]
        return torch.cat([of_rows, of_branches], dim=1)


@dataclass(frozen=True)
class StockAttention:
    """The attention of a model as it is without branches."""

    attend: Callable[..., Any]  # as the model is configured
    eager: Callable[..., Any]  # the family's plain code
    caps_scores: bool  # whether the configured one caps scores where the family does

    def needs_eager(self, options: dict[str, Any]) -> bool:
        """Whether a layer with these options has sinks, or a cap, which SDPA has not."""
        has_sinks = options.get("s_aux") is not None
        has_cap = self.caps_scores and options.get("softcap") is not None
        return has_sinks or has_cap


class BranchAttention:
    """The attention of one forward: the rows are attended as always, and branches beside them.

    The queries of a call meet the keys that any of its branches sees, and a mask leaves each its
    own. What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.
    """

    def __init__(self, tokens: int, layout: Layout, keys: RowKeys | None = None) -> None:
        """Take T, the tokens of a row, and where the branches stand.

        `keys` gets the keys and values of the rows. A forward without rows (T is 0) reads there
        what an earlier one has left.
        """
        self._tokens = tokens
        self._layout = layout
        self._keys = keys
        on_cpu = layout.position.device.type == "cpu"
        self._calls = attention_calls(layout, on_cpu)
        self._masks: dict[Any, Tensor] = {}
        # Long branches would have large masks; a kernel for varying lengths needs none. Layers with
        # a window have masks all the same: a window counts positions, and those of a branch can
        # leave out some between the rows' keys and its own, which the kernel would count.
        self._sequences = None if tokens else BranchSequences(layout)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let a model attend rows and branches inside the block.

        The rows are attended as the model is configured to, and with their own mask.
        """
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(interface: Any, name: str, eager: Callable[..., Any]) -> Callable[..., Any]:
            attend = get_interface(interface, name, eager)
            stock = StockAttention(attend, eager, name.startswith(CAPPING))
            return partial(self._attend, stock)

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
        stock: StockAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """(B, T + n/B, H, D_v) and no weights, in the place of the layer's own attention.

        `query` is (B, H, T + n/B, D); `key` and `value` have H_kv heads.
        """
        behind = self._attend_branches(stock, module, query, key, value, options)
        if not self._tokens:
            return behind[None].to(query.dtype), None
        rows = self._attend_rows(stock, module, (query, key, value), attention_mask, options)
        behind = behind.to(rows.dtype)
        by_row = behind.view(len(rows), -1, *behind.shape[1:])
        return torch.cat([rows, by_row], dim=1), None

    def _attend_rows(
        self,
        stock: StockAttention,
        module: nn.Module,
        parts: Sequence[Tensor],
        attention_mask: Any,
        options: dict[str, Any],
    ) -> Tensor:
        """(B, T, H, D_v): the rows, attended as without branches."""
        rows = [part[:, :, : self._tokens] for part in parts]
        positions = options.get("position_ids")
        if positions is not None:
            # Flash-attention reads from it where packed responses begin.
            options = options | {"position_ids": positions[..., : self._tokens]}
        output: Tensor
        output, _ = stock.attend(module, *rows, attention_mask, **options)
        return output

    def _attend_branches(
        self,
        stock: StockAttention,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        options: dict[str, Any],
    ) -> Tensor:
        """(n, H, D_v), from the tensors of `_attend`."""
        queries = self._parts(query).behind
        # Under autocast, values can be narrower than queries and keys.
        keys = self._parts(key.to(query.dtype))
        values = self._parts(value.to(query.dtype))
        if self._keys is not None:
            keys, values = self._exchange(self._keys, module, keys, values)
        scaling = options.get("scaling")
        window = options.get("sliding_window")
        sequences = self._sequences if window is None else None
        attend = partial(_attend_by_sdpa, scaling)
        if stock.needs_eager(options):
            attend = partial(_attend_in_slices, partial(stock.eager, module, **options))
        elif sequences is not None and takes_sequences(queries, values.rows):
            return sequences.attend(queries, keys, values, scaling)
        outputs = []
        for call in self._calls:
            columns = call.columns(window)
            own = queries[:, call.queries]
            seen_keys = keys.seen(columns, call.own)
            seen_values = values.seen(columns, call.own)
            mask = self.mask(call, window, queries.dtype)
            outputs.append(attend(own, seen_keys, seen_values, mask))
        return torch.cat(outputs)

    def _exchange(
        self, row_keys: RowKeys, module: nn.Module, keys: Parts, values: Parts
    ) -> tuple[Parts, Parts]:
        """Leave the rows' keys and values for later passes, or take them from an earlier one."""
        if self._tokens:
            row_keys[module] = (keys.rows, values.rows)
            return keys, values
        kept_keys, kept_values = row_keys[module]
        return Parts(kept_keys, keys.behind), Parts(kept_values, values.behind)

    def _parts(self, part: Tensor) -> Parts:
        """Split (B, heads, T + n/B, D), laid end to end; both are views if B is 1."""
        by_head = part.transpose(0, 1)
        rows = by_head[:, :, : self._tokens]
        behind = by_head[:, :, self._tokens :]
        return Parts(rows.flatten(1, 2), behind.flatten(1, 2))

    def mask(self, call: Call, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive (tokens, keys) for one call, built once a forward.

        The keys are the columns that the call sees, and then the call's own tokens.
        """
        which = (call.queries.start, window, dtype)
        if which not in self._masks:
            visible = self._visible(call, window)
            tokens, keys = visible.shape
            size = (tokens, keys + -keys % MASK_MULTIPLE)
            hiding = torch.full(size, -torch.inf, dtype=dtype, device=visible.device)
            mask = hiding[:, :keys]
            self._masks[which] = mask.masked_fill_(visible, 0.0)
        return self._masks[which]

    def _visible(self, call: Call, window: int | None) -> Tensor:
        """(tokens, keys) bool."""
        layout = self._layout
        position = layout.position[call.queries, None]
        branch = layout.branch[call.queries, None]
        first = layout.first[call.queries, None]
        end = layout.end[call.queries, None]
        own_position = layout.position[call.own]
        own_branch = layout.branch[call.own]
        columns = call.columns(window)
        column = torch.arange(columns.start, columns.stop, device=position.device)
        of_rows = (column >= first) & (column < end)
        of_branches = (own_branch == branch) & (own_position <= position)
        if window is not None:
            row_position = column - first
            of_rows &= position - row_position < window
            of_branches &= position - own_position < window
        return torch.cat([of_rows, of_branches], dim=-1)


class BranchSequences:
    """Attention of all branches in one call without masks.

    Each branch is a sequence for `attend_sequences`: its keys are those of the columns that it
    sees, and then its own, and its queries are the last of them.
    """

    def __init__(self, layout: Layout) -> None:
        """Find the keys of each branch."""
        query_bounds = [0]
        key_bounds = [0]
        index: list[int] = []  # among the n tokens of the branches, with the columns behind them
        for placed in layout.placed:
            branch = placed.branch
            index += range(layout.tokens + branch.first, layout.tokens + branch.end)
            index += range(placed.start, placed.stop)
            query_bounds.append(placed.stop)
            key_bounds.append(len(index))
        device = layout.position.device
        self._index = torch.tensor(index).to(device, non_blocking=True)
        self._queries = Bounds.at(query_bounds, device)
        self._keys = Bounds.at(key_bounds, device)

    def attend(self, queries: Tensor, keys: Parts, values: Parts, scaling: float | None) -> Tensor:
        """(n, H, D_v), from (H, n, D) queries."""
        query = queries.transpose(0, 1)
        key = self._gathered(keys)
        value = self._gathered(values)
        return attend_sequences(query, key, value, self._queries, self._keys, scaling)

    def _gathered(self, parts: Parts) -> Tensor:
        """(keys, H_kv, D) of all branches, one after the other."""
        both = torch.cat([parts.behind, parts.rows], dim=1)
        return both[:, self._index].transpose(0, 1)


def _attend_by_sdpa(
    scaling: float | None, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """(tokens, H, D_v) by torch's SDPA, from (H, tokens, D) queries and (H_kv, keys, D) keys.

    `mask` is additive, (tokens, keys). The S query heads of a key head lie along the batch axis, so
    nothing is copied for them.
    """
    shared = query.view(len(keys), -1, *query.shape[1:])
    query = shared.transpose(0, 1)  # (S, H_kv, tokens, D)
    keys = keys.expand(len(query), -1, -1, -1)
    values = values.expand(len(query), -1, -1, -1)
    output = scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    by_key_head = output.transpose(0, 1)
    by_head = by_key_head.flatten(0, 1)
    return by_head.transpose(0, 1)


def _attend_in_slices(
    eager: Callable[..., Any], query: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """Attend as `_attend_by_sdpa` does, with the family's own attention, for sinks and caps.

    Slices of the queries keep the scores few.
    """
    scores_of_token = len(query) * keys.shape[1]
    size = max(1, MAX_SCORES // scores_of_token)
    parts = torch.split(query, size, dim=1)
    masks = torch.split(mask, size)
    outputs = []
    for part, seen in zip(parts, masks, strict=True):
        output, _ = eager(part[None], keys[None], values[None], seen)
        outputs.append(output[0])
    return torch.cat(outputs)
