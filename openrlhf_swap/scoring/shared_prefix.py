"""Score all prefixes of a response in the forward of the response itself; docs/method/scoring.md
describes it.

The K+1 answer branches stand behind the rows: branch k sees its response up to e_k and itself, at
the positions that follow e_k. It starts with a second copy of the prefix's last token, which
predicts its first one, so that even an empty close template needs nothing of the row but its keys,
values and states.

Shapes: B rows of T tokens, n tokens of branches, n/B of them behind each row; H heads, S for each
of H_kv key heads. Columns count the tokens of the rows as if these were laid end to end.
"""

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    Cache,
    DynamicCache,
    PretrainedConfig,
)
from transformers.cache_utils import LinearAttentionLayer

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.answer import ScoreRequest, widen

MAX_MASK = 2**24  # elements of a call's attention mask: 32 MiB in bfloat16
# On a GPU one call for all branches costs less than several, though most of its attention scores
# are masked. A CPU would pay for those, so there a call has few branches, and keys up to the
# longest of their prefixes.
MAX_MASK_ON_CPU = 2**17
MAX_SCORES = 2**27  # attention scores held at a time where SDPA cannot be used: 512 MiB in float32
ALIGNED = 16  # with another number of keys in a row of the mask, torch would copy it for its kernel at each call
CAPPING = (
    "eager",
    "flash",
    "flex",
)  # attention that caps scores; SDPA, and what is built on it, leaves the cap out
# Tokens that a gated delta rule is solved for at a time. Without kernels transformers loops over
# them, and its default of 64 is longer than a branch.
CHUNK = 12
_COPY = (
    -1
)  # in the place of the id of a branch's first token, which is that of its prefix's last one


class Branch(NamedTuple):
    """Where a branch stands."""

    start: int  # its first token among the n
    stop: int  # the one after its last
    first: int  # the column of its response's first token
    end: int  # that of its prefix's last token, of which its own first token is a copy: it sees those before

    def sees_from(self, window: int | None) -> int:
        """The first column that any of its tokens sees."""
        return self.first if window is None else max(self.first, self.end - window + 1)


class BranchedRows:
    """The rows of a forward, with answer branches behind them.

    `tokens` is T; `predicting` are the (m,) rows and (m,) columns of the tokens that predict the
    answers' tokens, which are the (m,) int64 `targets`; `share` is the branches' part of all
    tokens, padding apart.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        config: PretrainedConfig,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        packed: bool = False,
        agree: Callable[[int], int] = int,
    ) -> None:
        """Find the place of everything.

        Takes a causal language model in eval mode, or its wrapper; its own configuration; a
        (responses, tokens) mask, 1 for tokens, padded on either side; and requests, at most one a
        response, at least one in all. `packed`, the forward has all responses in one row, without
        padding. `agree` maps this rank's number of calls of a recurrent layer to the largest of all
        ranks in lockstep.
        """
        starts, counts = torch.stack([attention_mask.argmax(-1), attention_mask.sum(-1)]).tolist()
        rows, tokens = (1, sum(counts)) if packed else attention_mask.shape
        # The column of each response's first token, if all rows were laid end to end.
        firsts = (
            list(accumulate(counts, initial=0))
            if packed
            else [n * tokens + at for n, at in enumerate(starts)]
        )
        table: list[
            tuple[int, ...]
        ] = []  # id, position, branch, and that branch's `first` and `end`
        predicted: list[tuple[int, int]] = []
        branches: list[Branch] = []
        for request in requests:
            first, branch = firsts[request.row], request.branch
            for column in request.prefix_ends:
                length = max(
                    0, column - starts[request.row]
                )  # an idle rank's request may point at padding
                start, end = len(table), first + length
                predicted += [
                    (start + n, branch.ids[n]) for n, used in enumerate(branch.scored) if used
                ]
                ids = (_COPY, *branch.ids[:-1])  # the last one predicts nothing that is scored
                table += [
                    (token, length + n, len(branches), first, end) for n, token in enumerate(ids)
                ]
                branches.append(Branch(start, len(table), first, end))
        self._sizes = [
            (len(request.prefix_ends), sum(request.branch.scored)) for request in requests
        ]

        self.tokens: int = tokens
        self.share = len(table) / (len(table) + sum(counts))
        width = -(-len(table) // rows)
        table += [(0, 0, -1, 0, 0)] * (rows * width - len(table))  # idle
        branches[-1] = branches[-1]._replace(stop=len(table))
        # Sent to the device once, so that no layer waits for them.
        device = attention_mask.device
        self._table = torch.tensor(table).T.to(device, non_blocking=True)
        places, self.targets = torch.tensor(predicted).T.to(device, non_blocking=True)
        self.predicting = places // width, tokens + places % width
        self._mask = (
            None
            if packed
            else torch.cat([attention_mask, attention_mask.new_ones(rows, width)], dim=1)
        )

        groups = group_branches(branches, device)
        self._attention = BranchAttention(tokens, groups, self._table[1:])
        spans = [(first, first + count) for first, count in zip(firsts, counts, strict=False)]
        self._mixing = partial(
            branching_mixers, model, config, tokens, spans, branches, device, agree
        )

    def inputs(self, ids: Tensor, position_ids: Tensor) -> dict[str, Any]:
        """The model's arguments, from (B, T) token and position ids of the rows."""
        own, positions, *_, ends = self._table
        own = torch.where(own == _COPY, ids.flatten()[ends], own)
        return {
            "input_ids": torch.cat([ids, own.view(len(ids), -1)], dim=1),
            "position_ids": torch.cat([position_ids, positions.view(len(ids), -1)], dim=1),
            "attention_mask": self._mask,
            "use_cache": False,
        }

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Let the model run on such inputs inside the block."""
        with self._attention.replacing(), self._mixing():
            yield

    def scores(self, log_probs: Tensor) -> list[Tensor]:
        """A (K+1,) tensor l_0..l_K of each request, on the CPU, from the (m,) log-probabilities of
        the targets.
        """
        parts = torch.split(
            log_probs.cpu(), [branches * tokens for branches, tokens in self._sizes]
        )
        return [part.view(size).mean(-1) for part, size in zip(parts, self._sizes, strict=True)]


@torch.no_grad()
def score_shared_prefix(
    model: Callable[..., Any],
    config: PretrainedConfig,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool = False,
    agree: Callable[[int], int] = int,
) -> list[Tensor]:
    """Score the requests in a forward of their own, for callers that do not need the rows' logits.

    `sequences` are (responses, tokens) int64 token ids; the other arguments are those of
    `BranchedRows`. Returns one (K+1,) tensor l_0..l_K per request, float32 (float64 for a float64
    model), on the CPU.
    """
    rows = BranchedRows(model, config, attention_mask, requests, packed, agree)
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    if packed:
        sequences, positions = (
            part[attention_mask.bool()].unsqueeze(0) for part in (sequences, positions)
        )
    at_rows, columns = rows.predicting
    kept, at_kept = columns.unique(return_inverse=True)
    with rows.branching():
        logits = model(**rows.inputs(sequences, positions), logits_to_keep=kept).logits
    logits = widen(logits[at_rows, at_kept])
    return rows.scores(logits.gather(-1, rows.targets[:, None]).squeeze(-1) - logits.logsumexp(-1))


def group_branches(branches: Sequence[Branch], device: torch.device) -> list[list[Branch]]:
    """Consecutive branches whose mask is small enough to attend them in one call, at least one in
    each group.
    """
    most = MAX_MASK_ON_CPU if device.type == "cpu" else MAX_MASK
    groups = [[branches[0]]]
    for branch in branches[1:]:
        group = [*groups[-1], branch]
        tokens = branch.stop - group[0].start
        seen = max(each.end for each in group) - min(each.first for each in group)
        if tokens * (seen + tokens) <= most:
            groups[-1].append(branch)
        else:
            groups.append([branch])
    return groups


class BranchAttention:
    """The attention of one forward: the rows' as always, and one masked call a layer for each group
    of branches.

    The queries of a group meet the keys that any of its branches sees, and a mask leaves each its
    own. What a family adds to attention comes from the layer: a window, sinks, a cap on the scores.
    """

    def __init__(self, tokens: int, groups: Sequence[Sequence[Branch]], table: Tensor) -> None:
        """Take T, the groups, and a (4, n) table: each token's position, its branch, that one's
        `first` and `end`.
        """
        self._tokens, self._groups, self._table = tokens, groups, table
        self._masks: dict[Any, Tensor] = {}

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let a model attend its rows as it is configured to, with their mask, and the branches,
        inside the block.
        """
        get_interface = AttentionInterface.get_interface
        get_mask: Callable[..., Any] = AttentionMaskInterface.__getitem__

        def get(
            interface: AttentionInterface, name: str, eager: Callable[..., Any]
        ) -> Callable[..., Any]:
            return partial(
                self._attend, get_interface(interface, name, eager), eager, name.startswith(CAPPING)
            )

        def get_mask_of_rows(interface: AttentionMaskInterface, name: str) -> Callable[..., Any]:
            return partial(self._mask_of_rows, get_mask(interface, name))

        with (
            replaced(AttentionInterface, "get_interface", get),
            replaced(AttentionMaskInterface, "__getitem__", get_mask_of_rows),
        ):
            yield

    def _mask_of_rows(
        self, make: Callable[..., Any], attention_mask: Tensor | None, **options: Any
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
        if options.get("s_aux") is not None or (caps_scores and options.get("softcap") is not None):
            attend = partial(_attend_in_slices, partial(eager, module, **options))
        else:
            attend = partial(_attend_by_sdpa, options.get("scaling"))
        parts = [self._laid_end_to_end(part) for part in (query, key, value)]
        behind = self._attend_branches(attend, parts, options.get("sliding_window"))
        if (
            options.get("position_ids") is not None
        ):  # flash-attention reads from it where packed responses begin
            options["position_ids"] = options["position_ids"][..., : self._tokens]
        rows = (part[:, :, : self._tokens] for part in (query, key, value))
        output, _ = attend_rows(module, *rows, attention_mask, **options)
        behind = behind.view(len(output), -1, *behind.shape[1:]).to(output.dtype)
        return torch.cat([output, behind], dim=1), None

    def _laid_end_to_end(self, part: Tensor) -> tuple[Tensor, Tensor]:
        """Split (B, heads, T + n/B, D) into rows (heads, B*T, D) and branches (heads, n, D); views
        if B is 1.
        """
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
            seen = slice(
                min(branch.sees_from(window) for branch in group),
                max(branch.end for branch in group),
            )
            queries = all_queries[:, own]
            # Under autocast, values can be narrower than queries and keys.
            keys, values = (
                torch.cat([rows[:, seen], behind[:, own]], dim=1).to(queries.dtype)
                for rows, behind in keys_and_values
            )
            outputs.append(
                attend(queries, keys, values, self._mask(own, seen, window, queries.dtype))
            )
        return torch.cat(outputs)

    def _mask(self, own: slice, seen: slice, window: int | None, dtype: torch.dtype) -> Tensor:
        """Additive (tokens, keys), built once a forward: columns that are seen, and the group's own
        tokens.
        """
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
            mask = torch.full(
                (tokens, -(-keys // ALIGNED) * ALIGNED),
                -torch.inf,
                dtype=dtype,
                device=visible.device,
            )
            self._masks[which] = mask[:, :keys].masked_fill_(visible, 0.0)
        return self._masks[which]


def _attend_by_sdpa(
    scaling: float | None, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """(tokens, H, D_v); the S query heads of a key head lie along the batch axis, so nothing is
    copied for them.
    """
    query = query.view(len(keys), -1, *query.shape[1:]).transpose(0, 1)  # (S, H_kv, tokens, D)
    keys, values = (part.expand(len(query), -1, -1, -1) for part in (keys, values))
    output = nn.functional.scaled_dot_product_attention(
        query, keys, values, attn_mask=mask, scale=scaling
    )
    return output.transpose(0, 1).flatten(0, 1).transpose(0, 1)


def _attend_in_slices(
    eager: Callable[..., Any], query: Tensor, keys: Tensor, values: Tensor, mask: Tensor
) -> Tensor:
    """As `_attend_by_sdpa`, with the family's own attention, for sinks and caps. Slices keep the
    scores few.
    """
    size = max(1, MAX_SCORES // (len(query) * keys.shape[1]))
    slices = zip(torch.split(query, size, dim=1), torch.split(mask, size), strict=True)
    return torch.cat(
        [eager(part[None], keys[None], values[None], seen)[0][0] for part, seen in slices]
    )


# A mixer's unwrapped forward, of (rows, tokens, hidden) and the state to continue from, which it
# advances.
MixerForward = Callable[[Tensor, LinearAttentionLayer], Tensor]


@contextmanager
def branching_mixers(
    model: object,
    config: PretrainedConfig,
    tokens: int,
    spans: Sequence[tuple[int, int]],
    branches: Sequence[Branch],
    device: torch.device,
    agree: Callable[[int], int],
) -> Iterator[None]:
    """Let a model's recurrent and convolution layers (mixers) run rows of `tokens` each and the
    branches.

    A mixer gets its rows in pieces that end where branches start, and its state is copied there;
    then all branches continue from their states in a batch. Rows come one at a time, without
    padding: states of different lengths cannot be batched. `spans` are the columns of each
    response's first token and the one after its last.
    """
    mixers = _mixers_of(model)
    if not mixers:
        yield
        return
    layers: list[Any] = DynamicCache(config=config).layers
    pieces = cut_into_pieces(spans, {branch.end for branch in branches})
    spare = agree(len(pieces)) - len(pieces)
    # All branches side by side, filled up; mixers may run other code for one token.
    width = max(2, *(branch.stop - branch.start for branch in branches))
    starts = torch.tensor([branch.start for branch in branches], device=device)
    side_by_side = starts[:, None] + torch.arange(width, device=device)

    def run(index: int, forward: MixerForward, hidden: Tensor) -> Tensor:
        fresh = LinearAttentionLayer(layers[index].number_of_states)
        states: dict[int, LinearAttentionLayer] = {}
        rows, behind = hidden[:, :tokens].flatten(0, 1), hidden[:, tokens:].flatten(0, 1)
        output = torch.zeros_like(rows)
        for start, stop, continued in pieces:
            state = copy.deepcopy(states[start] if continued else fresh)
            output[start:stop] = forward(rows[None, start:stop], state)[0]
            states[stop] = state
        for _ in range(spare):
            forward(hidden[:1, :1], copy.deepcopy(fresh))
        origins = [
            states[branch.end] if branch.end > branch.first else fresh for branch in branches
        ]
        mixed = forward(behind[side_by_side.clamp(max=len(behind) - 1)], _stacked(origins))
        place = torch.arange(len(behind), device=device)
        number = torch.searchsorted(starts, place, right=True) - 1
        own = mixed[number, (place - starts[number]).clamp(max=width - 1)]
        return torch.cat(
            [part.view(len(hidden), -1, part.shape[-1]) for part in (output, own)], dim=1
        )

    with ExitStack() as stack:
        for mixer in mixers:
            stack.enter_context(replaced(mixer, "forward", _calling(mixer, mixer.forward, run)))
        yield


def cut_into_pieces(
    spans: Sequence[tuple[int, int]], cuts: Collection[int]
) -> list[tuple[int, int, bool]]:
    """The spans, cut at the columns: first column, column after the last, and whether the piece
    continues another.

    A single token is never a piece of its own, because a mixer would take it for generation and
    might run other code: it is run again together with the piece before it.
    """
    pieces = []
    for start, stop in spans:
        bounds = sorted({start, stop, *(column for column in cuts if start < column < stop)})
        for number in range(1, len(bounds)):
            single = number > 1 and bounds[number] - bounds[number - 1] == 1
            begin = bounds[number - 1 - single]
            pieces.append((begin, bounds[number], begin > start))
    return pieces


def _mixers_of(model: object) -> list[nn.Module]:
    """The layers with a recurrent or convolution state: each of them has a convolution over its
    tokens.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [
        module
        for module in modules
        if hasattr(module, "layer_idx")
        and any(isinstance(child, nn.Conv1d) for child in module.children())
    ]


def _calling(
    mixer: Any, forward: Callable[..., Tensor], run: Callable[[int, MixerForward, Tensor], Tensor]
) -> Callable[..., Tensor]:
    index: int = mixer.layer_idx
    solves = hasattr(sys.modules[type(mixer).__module__], "torch_chunk_gated_delta_rule")
    short = {"chunk_size": CHUNK} if solves else {}

    def called(hidden_states: Tensor, **arguments: Any) -> Tensor:
        name = "cache_params" if "cache_params" in arguments else "past_key_values"

        def alone(hidden: Tensor, state: LinearAttentionLayer) -> Tensor:
            # Some mixers query the cache's last layer when they mean their own.
            return forward(hidden, **{name: Cache(layers=[state] * (index + 1))}, **short)

        return run(index, alone, hidden_states)

    return called


def _stacked(states: Sequence[LinearAttentionLayer]) -> LinearAttentionLayer:
    """Stack states into one, a row each. Before a row's first token there is no state, which is the
    same as zeros.
    """
    filled = [state for state in states if any(state.has_previous_state.values())]
    if not filled:
        return copy.deepcopy(states[0])
    stacked = copy.deepcopy(filled[0])
    for name in ("conv_states", "recurrent_states"):
        for number, like in getattr(stacked, name).items():
            if like is not None:
                parts = [getattr(state, name)[number] for state in states]
                rows = torch.cat(
                    [torch.zeros_like(like) if part is None else part for part in parts]
                )
                getattr(stacked, name)[number] = rows
    return stacked
