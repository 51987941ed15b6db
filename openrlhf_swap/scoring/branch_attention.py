"""Attention of answer branches over the responses that they branch off, in one masked call a layer.

The rows of a forward are attended as always, by the implementation that the model is configured with. The branches'
tokens stand behind the rows. A branch sees a prefix of its response, and itself: the queries of all branches meet the
keys that any of them sees, and a mask leaves each its own. The query heads that share a key head are laid along the
batch axis, where keys, values and mask are expanded without a copy.

What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each of H_kv key
heads. Columns count the tokens of the rows as if these were laid end to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from openrlhf_swap.packages.replace import replaced

MAX_SCORES = 2**27  # attention scores held at a time where torch's own attention cannot be used: 512 MiB in float32
ALIGNED = 16  # with another number of keys in a row of the mask, torch would copy it for its kernel at each call


class Branch(NamedTuple):
    """Where a branch stands.

    Attributes:
        start: its first token among the n.
        stop: the one after its last.
        first: the column of its response's first token.
        end: the column of its prefix's last token, of which its own first token is a copy: it sees those before.
    """

    start: int
    stop: int
    first: int
    end: int

    def sees_from(self, window: int | None) -> int:
        """The first column that any of its tokens sees."""
        return self.first if window is None else max(self.first, self.end - window + 1)


class BranchAttention:
    """The attention of one forward.

    Args:
        tokens: T.
        groups: consecutive branches that are attended in one call.
        table: (4, n) int64, of each token its position, its branch, and its branch's `first` and `end`. Tokens behind
            the last branch's are idle; their branch is -1.
    """

    def __init__(self, tokens: int, groups: Sequence[Sequence[Branch]], table: Tensor) -> None:
        self._tokens, self._groups, self._table = tokens, groups, table
        self._masks: dict[Any, Tensor] = {}

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Meanwhile a model attends its rows as it is configured to, with their mask, and the branches."""
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(interface: AttentionInterface, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
            # SDPA is the one implementation of transformers that leaves the cap out.
            return partial(self._attend, get_interface(interface, name, default), name != "sdpa")

        def get_mask_of_rows(interface: AttentionMaskInterface, name: str) -> Callable[..., Any]:
            return partial(self._mask_of_rows, get_mask(interface, name))

        with (
            replaced(AttentionInterface, "get_interface", get),
            replaced(AttentionMaskInterface, "__getitem__", get_mask_of_rows),
        ):
            yield

    def _mask_of_rows(self, make: Callable[..., Any], attention_mask: Tensor | None, **options: Any) -> Any:
        """What the rows' attention takes as a mask."""
        if attention_mask is not None:
            attention_mask = attention_mask[:, : self._tokens]
        options |= {"q_length": self._tokens, "kv_length": self._tokens}
        return make(attention_mask=attention_mask, **options)

    def _attend(
        self,
        attend_rows: Callable[..., Any],
        caps_scores: bool,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """(B, T + n/B, H, D_v) and no weights; query is (B, H, T + n/B, D), key and value with H_kv."""
        tokens = self._tokens
        parts = [self._laid_end_to_end(part) for part in (query, key, value)]
        behind = self._attend_branches(parts, caps_scores, **options).transpose(0, 1)
        if options.get("position_ids") is not None:  # flash-attention reads from it where packed responses begin
            options["position_ids"] = options["position_ids"][..., :tokens]
        rows = (part[:, :, :tokens] for part in (query, key, value))
        output, _ = attend_rows(module, *rows, attention_mask, **options)
        behind = behind.reshape(len(output), -1, *behind.shape[1:]).to(output.dtype)
        return torch.cat([output, behind], dim=1), None

    def _laid_end_to_end(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Of (B, heads, T + n/B, D) the rows' (heads, B*T, D), and (heads, n, D): views if there is one row."""
        rows, behind = torch.split(part, [self._tokens, part.shape[2] - self._tokens], dim=2)
        return rows.transpose(0, 1).flatten(1, 2), behind.transpose(0, 1).flatten(1, 2)

    def _attend_branches(
        self,
        parts: Sequence[tuple[Tensor, Tensor]],
        caps_scores: bool,
        scaling: float | None = None,
        sliding_window: int | None = None,
        s_aux: Tensor | None = None,
        softcap: float | None = None,
        **_unused: Any,
    ) -> Tensor:
        """(H, n, D_v) of the branches; `s_aux` (H,) are the scores of sinks, which take attention and give nothing."""
        (_, queries), *keys_and_values = parts
        cap = softcap if caps_scores else None
        outputs = []
        for number, group in enumerate(self._groups):
            own = self._tokens_of(number)
            seen = slice(
                min(branch.sees_from(sliding_window) for branch in group), max(branch.end for branch in group)
            )
            # Under autocast, values can be narrower than queries and keys.
            keys, values = (
                torch.cat([rows[:, seen], behind[:, own]], dim=1).to(queries.dtype) for rows, behind in keys_and_values
            )
            chosen = queries[:, own]
            chosen = chosen.view(len(keys), -1, *chosen.shape[1:]).transpose(0, 1)  # (S, H_kv, tokens, D)
            keys, values = keys.expand(len(chosen), -1, -1, -1), values.expand(len(chosen), -1, -1, -1)
            mask = self._mask(number, seen, sliding_window, queries.dtype)
            if s_aux is None and cap is None:
                output = nn.functional.scaled_dot_product_attention(
                    chosen, keys, values, attn_mask=mask, scale=scaling
                )
            else:
                sinks = None if s_aux is None else s_aux.view(keys.shape[1], -1).T[..., None, None]
                output = _attend_in_slices(chosen, keys, values, mask, scaling, sinks, cap)
            outputs.append(output.transpose(0, 1).flatten(0, 1))
        return torch.cat(outputs, dim=1)

    def _tokens_of(self, number: int) -> slice:
        """The tokens of a group; those behind the last branch belong to the last one."""
        last = number == len(self._groups) - 1
        return slice(self._groups[number][0].start, self._table.shape[1] if last else self._groups[number][-1].stop)

    def _mask(self, number: int, seen: slice, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive (tokens, keys), built once a forward: seen columns, and the branches' own tokens."""
        which = (number, window, dtype)
        if which not in self._masks:
            position, branch, first, end = self._table[:, self._tokens_of(number), None]
            column = torch.arange(seen.start, seen.stop, device=position.device)
            prefix = (column >= first) & (column < end)
            own = (branch == branch.T) & (position >= position.T)
            if window is not None:
                prefix &= column - first > position - window
                own &= position - window < position.T
            seen_or_own = torch.cat([prefix, own], dim=-1)
            keys = seen_or_own.shape[1]
            whole = torch.full((len(own), -(-keys // ALIGNED) * ALIGNED), -torch.inf, dtype=dtype, device=own.device)
            whole[:, :keys].masked_fill_(seen_or_own, 0.0)
            self._masks[which] = whole[:, :keys]
        return self._masks[which]


def _attend_in_slices(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor,
    scaling: float | None,
    sinks: Tensor | None,
    cap: float | None,
) -> Tensor:
    """What torch's own attention cannot do: sinks (S, H_kv, 1, 1) and a cap. Slices keep the scores few."""
    size = max(1, MAX_SCORES // (query.shape[0] * query.shape[1] * keys.shape[2]))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    parts = []
    for first in range(0, query.shape[2], size):
        chosen = slice(first, first + size)
        scores = query[:, :, chosen] @ keys.transpose(-1, -2) * scale
        if cap is not None:
            scores = (scores / cap).tanh() * cap
        scores = scores + mask[chosen]
        if sinks is not None:
            scores = torch.cat([scores, sinks.to(scores.dtype).expand(-1, -1, scores.shape[2], -1)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32)).to(values.dtype)
        parts.append(weights[..., : keys.shape[2]] @ values)
    return torch.cat(parts, dim=2)
