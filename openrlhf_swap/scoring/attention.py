"""The attention of branches: a masked call a layer for each group, or one with varying lengths.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each
of H_kv key heads, D numbers of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branches import Call, Layout, attention_calls

MAX_SCORES = 2**27  # attention scores held at a time where SDPA cannot be used: 512 MiB in float32
# With another number of keys in a row of the mask, torch would copy it for its kernel at each call.
ALIGNED = 16
# Attention that caps scores; SDPA, and what is built on it, leaves the cap out.
CAPPING = ("eager", "flash", "flex")

# Attends queries (H, tokens, D) to keys and values (H_kv, keys, D) under an additive mask
# (tokens, keys); gives (tokens, H, D_v).
Attend = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class BranchAttention:
    """The attention of one forward: the rows are attended as always, and branches beside them.

    The queries of a call meet the keys that any of its branches sees, and a mask leaves each its
    own. What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.
    """

    def __init__(self, tokens: int, layout: Layout) -> None:
        """Take T, the tokens of a row, and where the branches stand."""
        self._tokens = tokens
        self._layout = layout
        self._calls = attention_calls(layout, on_cpu=layout.position.device.type == "cpu")
        self._masks: dict[Any, Tensor] = {}

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let a model attend rows and branches inside the block.

        The rows are attended as the model is configured to, and with their own mask.
        """
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(interface: Any, name: str, eager: Callable[..., Any]) -> Callable[..., Any]:
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
        self,
        make: Callable[..., Any],
        attention_mask: Tensor | None,
        **options: Any,
    ) -> Any:
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
        """(B, T + n/B, H, D_v) and no weights; query is (B, H, T + n/B, D), key and value have H_kv
        heads.
        """
        attend = attention_of(module, eager, caps_scores, options)
        _, queries = self._split(query)
        keys_and_values = [self._split(key), self._split(value)]
        behind = self._attend_branches(
            attend, queries, keys_and_values, options.get("sliding_window")
        )
        if options.get("position_ids") is not None:
            # Flash-attention reads from it where packed responses begin.
            options["position_ids"] = options["position_ids"][..., : self._tokens]
        rows = [part[:, :, : self._tokens] for part in (query, key, value)]
        output, _ = attend_rows(module, *rows, attention_mask, **options)
        behind = behind.view(len(output), -1, *behind.shape[1:]).to(output.dtype)
        return torch.cat([output, behind], dim=1), None

    def _split(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Split (B, heads, T + n/B, D) into rows (heads, B*T, D) and branches (heads, n, D).

        Both are laid end to end; they are views if B is 1.
        """
        rows = part[:, :, : self._tokens]
        behind = part[:, :, self._tokens :]
        return rows.transpose(0, 1).flatten(1, 2), behind.transpose(0, 1).flatten(1, 2)

    def _attend_branches(
        self,
        attend: Attend,
        all_queries: Tensor,
        keys_and_values: Sequence[tuple[Tensor, Tensor]],
        window: int | None,
    ) -> Tensor:
        """(n, H, D_v), from (H, n, D) queries, and keys and values of rows and branches."""
        outputs = []
        for call in self._calls:
            queries = all_queries[:, call.queries]
            seen = call.columns(window)
            # Under autocast, values can be narrower than queries and keys.
            keys, values = (
                torch.cat([rows[:, seen], behind[:, call.own]], dim=1).to(queries.dtype)
                for rows, behind in keys_and_values
            )
            outputs.append(attend(queries, keys, values, self.mask(call, window, queries.dtype)))
        return torch.cat(outputs)

    def mask(self, call: Call, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive (tokens, keys) for one call, built once a forward.

        The keys are the columns that the call sees, and then the call's own tokens.
        """
        which = (call.queries.start, window, dtype)
        if which not in self._masks:
            self._masks[which] = _additive(self._visible(call, window), dtype)
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


def _additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    tokens, keys = visible.shape
    size = (tokens, keys + -keys % ALIGNED)
    mask = torch.full(size, -torch.inf, dtype=dtype, device=visible.device)
    return mask[:, :keys].masked_fill_(visible, 0.0)


def attention_of(
    module: nn.Module,
    eager: Callable[..., Any],
    caps_scores: bool,
    options: dict[str, Any],
) -> Attend:
    """How a layer attends branches: by SDPA; where it has sinks or caps scores, in its own way."""
    has_sinks = options.get("s_aux") is not None
    has_cap = caps_scores and options.get("softcap") is not None
    if has_sinks or has_cap:
        return partial(_attend_in_slices, partial(eager, module, **options))
    return partial(_attend_by_sdpa, options.get("scaling"))


def _attend_by_sdpa(
    scaling: float | None,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
) -> Tensor:
    """(tokens, H, D_v); the S query heads of a key head lie along the batch axis, so nothing is
    copied for them.
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
    parts = zip(torch.split(query, size, dim=1), torch.split(mask, size), strict=True)
    for part, seen in parts:
        output, _ = eager(part[None], keys[None], values[None], seen)
        outputs.append(output[0])
    return torch.cat(outputs)
