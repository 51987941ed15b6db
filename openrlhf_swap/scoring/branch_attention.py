"""Attention of answer branches over the responses that they branch off, in one masked call a layer.

The rows of a forward are attended as always, by the implementation that the model is configured with. The branches'
tokens stand behind the rows. A branch sees a prefix of its response, and itself: the queries of all branches meet the
keys that any of them sees, and a mask leaves each its own.

What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each of H_kv key
heads. Columns count the tokens of the rows as if these were laid end to end.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from openrlhf_swap.packages.versions import replaced

MAX_SCORES = 2**27  # attention scores held at a time where SDPA cannot be used: 512 MiB in float32
ALIGNED = 16  # with another number of keys in a row of the mask, torch would copy it for its kernel at each call
CAPPING = ("eager", "flash", "flex")  # attention that caps scores; SDPA, and what is built on it, leaves the cap out


class Branch(NamedTuple):
    """Where a branch stands."""

    start: int  # its first token among the n
    stop: int  # the one after its last
    first: int  # the column of its response's first token
    end: int  # that of its prefix's last token, of which its own first token is a copy: it sees those before

    def sees_from(self, window: int | None) -> int:
        """The first column that any of its tokens sees."""
        return self.first if window is None else max(self.first, self.end - window + 1)


class BranchAttention:
    """The attention of one forward."""

    def __init__(self, tokens: int, groups: Sequence[Sequence[Branch]], table: Tensor) -> None:
        """Take T, consecutive branches that are attended in one call each, and a (4, n) table of their tokens.

        It has each token's position, its branch, and that branch's `first` and `end`.
        """
        self._tokens, self._groups, self._table = tokens, groups, table
        self._masks: dict[Any, Tensor] = {}

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Meanwhile a model attends its rows as it is configured to, with their mask, and the branches."""
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(interface: AttentionInterface, name: str, eager: Callable[..., Any]) -> Callable[..., Any]:
            return partial(self._attend, get_interface(interface, name, eager), eager, name.startswith(CAPPING))

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
        eager: Callable[..., Any],
        caps_scores: bool,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Any,
        **options: Any,
    ) -> tuple[Tensor, None]:
        """(B, T + n/B, H, D_v) and no weights; query is (B, H, T + n/B, D), key and value have H_kv heads."""
        if options.get("s_aux") is not None or (caps_scores and options.get("softcap") is not None):
            attend = partial(_attend_in_slices, partial(eager, module, **options))
        else:
            attend = partial(_attend_by_sdpa, options.get("scaling"))
        parts = [self._laid_end_to_end(part) for part in (query, key, value)]
        behind = self._attend_branches(attend, parts, options.get("sliding_window"))
        if options.get("position_ids") is not None:  # flash-attention reads from it where packed responses begin
            options["position_ids"] = options["position_ids"][..., : self._tokens]
        rows = (part[:, :, : self._tokens] for part in (query, key, value))
        output, _ = attend_rows(module, *rows, attention_mask, **options)
        behind = behind.view(len(output), -1, *behind.shape[1:]).to(output.dtype)
        return torch.cat([output, behind], dim=1), None

    def _laid_end_to_end(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Of (B, heads, T + n/B, D) the rows' (heads, B*T, D), and (heads, n, D): views if there is one row."""
        rows, behind = torch.split(part, [self._tokens, part.shape[2] - self._tokens], dim=2)
        return rows.transpose(0, 1).flatten(1, 2), behind.transpose(0, 1).flatten(1, 2)

    def _attend_branches(
        self,
        attend: Callable[..., Tensor],
        parts: Sequence[tuple[Tensor, Tensor]],
        window: int | None,
    ) -> Tensor:
        """(n, H, D_v), from queries, keys and values of rows and branches."""
        (_, all_queries), *keys_and_values = parts
        outputs = []
        for group in self._groups:
            own = slice(group[0].start, group[-1].stop)
            seen = slice(min(branch.sees_from(window) for branch in group), max(branch.end for branch in group))
            queries = all_queries[:, own]
            # Under autocast, values can be narrower than queries and keys.
            keys, values = (
                torch.cat([rows[:, seen], behind[:, own]], dim=1).to(queries.dtype) for rows, behind in keys_and_values
            )
            outputs.append(attend(queries, keys, values, self._mask(own, seen, window, queries.dtype)))
        return torch.cat(outputs)

    def _mask(self, own: slice, seen: slice, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive (tokens, keys), built once a forward: columns that are seen, and the group's own tokens."""
        which = (own.start, window, dtype)
        if which not in self._masks:
            position, branch, first, end = self._table[:, own, None]
            column = torch.arange(seen.start, seen.stop, device=position.device)
            of_rows = (column >= first) & (column < end)
            of_branches = (branch == branch.T) & (position >= position.T)
            if window is not None:
                of_rows &= position - (column - first) < window
                of_branches &= position - position.T < window
            visible = torch.cat([of_rows, of_branches], dim=-1)
            tokens, keys = visible.shape
            mask = torch.full((tokens, -(-keys // ALIGNED) * ALIGNED), -torch.inf, dtype=dtype, device=visible.device)
            self._masks[which] = mask[:, :keys].masked_fill_(visible, 0.0)
        return self._masks[which]


def _attend_by_sdpa(scaling: float | None, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """(tokens, H, D_v); the S query heads of a key head lie along the batch axis, so nothing is copied for them."""
    query = query.view(len(keys), -1, *query.shape[1:]).transpose(0, 1)  # (S, H_kv, tokens, D)
    keys, values = (part.expand(len(query), -1, -1, -1) for part in (keys, values))
    output = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, scale=scaling)
    return output.transpose(0, 1).flatten(0, 1).transpose(0, 1)


def _attend_in_slices(eager: Callable[..., Any], query: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """As `_attend_by_sdpa`, with the family's own attention, for sinks and caps. Slices keep the scores few."""
    size = max(1, MAX_SCORES // (len(query) * keys.shape[1]))
    slices = zip(torch.split(query, size, dim=1), torch.split(mask, size), strict=True)
    return torch.cat([eager(part[None], keys[None], values[None], seen)[0][0] for part, seen in slices])
