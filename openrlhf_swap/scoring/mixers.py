"""Branches through recurrent and convolution layers, which keep a state instead of keys."""

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import LinearAttentionLayer

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branches import Layout, Rows

# Tokens that a gated delta rule is solved for at a time. Without kernels transformers loops over
# them, and its default of 64 is longer than a branch.
CHUNK = 12
# By which mixers take their cache; from transformers 5.24 on it is the last.
CACHE_NAMES = ("cache_params", "past_key_values", "cache")

# A mixer's own forward, of (rows, tokens, hidden) and the state to continue from; it advances that.
MixerForward = Callable[[Tensor, LinearAttentionLayer], Tensor]


class Piece(NamedTuple):
    """A part of a row, from one column to before another."""

    start: int
    stop: int
    continued: bool  # whether another piece of the same response ends where it starts


class BranchedMixers:
    """The recurrent and convolution layers (mixers) of one forward over rows and branches.

    A mixer gets its rows in pieces that end where branches start, and its state is copied there;
    then all branches continue from their states, side by side in a batch. Rows come one at a time,
    without padding: states of different lengths cannot be batched.
    """

    def __init__(
        self,
        model: object,
        config: PretrainedConfig,
        rows: Rows,
        layout: Layout,
        agree: Callable[[int], int],
    ) -> None:
        """Take the model, and where rows and branches stand.

        `agree` maps this rank's number of pieces to the largest of all ranks in lockstep.
        """
        self._mixers = mixers_of(model)
        self._tokens = rows.tokens
        if not self._mixers:
            return
        self._layers: list[Any] = DynamicCache(config=config).layers
        self._branches = layout.branches
        self._pieces = cut_into_pieces(rows.spans, {branch.end for branch in layout.branches})
        self._spare = agree(len(self._pieces)) - len(self._pieces)
        device = layout.position.device
        self._starts = torch.tensor(layout.starts, device=device)
        spans_of_branches = zip(layout.starts, layout.stops, strict=True)
        lengths = [stop - start for start, stop in spans_of_branches]
        # The branches are filled up to one width; mixers may run other code for one token.
        self._width = max(2, *lengths)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let the mixers run rows and branches inside the block."""
        with ExitStack() as stack:
            for mixer in self._mixers:
                run = partial(self._run, mixer, mixer.forward)
                stack.enter_context(replaced(mixer, "forward", run))
            yield

    def _run(
        self, mixer: Any, original: Callable[..., Tensor], hidden_states: Tensor, **given: Any
    ) -> Tensor:
        """(B, T + n/B, hidden), in the place of the mixer's original forward."""
        forward = _of_a_state(mixer, original, cache_name(mixer, given))
        rows = hidden_states[:, : self._tokens]
        behind = hidden_states[:, self._tokens :]
        fresh = LinearAttentionLayer(self._layers[mixer.layer_idx].number_of_states)
        output, states = self._run_rows(rows.flatten(0, 1), forward, fresh)
        for _number in range(self._spare):
            forward(rows[:1, :1], copy.deepcopy(fresh))
        own = self._run_branches(behind.flatten(0, 1), forward, states, fresh)
        parts = [output.view(rows.shape), own.view(behind.shape)]
        return torch.cat(parts, dim=1)

    def _run_rows(
        self,
        rows: Tensor,
        forward: MixerForward,
        fresh: LinearAttentionLayer,
    ) -> tuple[Tensor, dict[int, LinearAttentionLayer]]:
        """The (columns, hidden) output, and the state after each piece by the column it ends at."""
        output = torch.zeros_like(rows)
        states: dict[int, LinearAttentionLayer] = {}
        for piece in self._pieces:
            state = copy.deepcopy(states[piece.start] if piece.continued else fresh)
            own = slice(piece.start, piece.stop)
            output[own] = forward(rows[None, own], state)[0]
            states[piece.stop] = state
        return output, states

    def _run_branches(
        self,
        behind: Tensor,
        forward: MixerForward,
        states: dict[int, LinearAttentionLayer],
        fresh: LinearAttentionLayer,
    ) -> Tensor:
        """The (n, hidden) output of the branches' tokens, each continued from its own state."""
        branches = self._branches
        origins = []
        for branch in branches:
            # Another response may end where this one begins.
            begins = branch.end == branch.first
            origins.append(fresh if begins else states[branch.end])
        place = torch.arange(len(behind), device=behind.device)
        side_by_side = self._starts[:, None] + place.new_tensor(range(self._width))
        in_a_batch = behind[side_by_side.clamp(max=len(behind) - 1)]
        mixed = forward(in_a_batch, _stacked(origins))
        number = torch.searchsorted(self._starts, place, right=True) - 1
        return mixed[number, place - self._starts[number]]


def cut_into_pieces(spans: Sequence[tuple[int, int]], cuts: Collection[int]) -> list[Piece]:
    """Cut spans of columns at the cuts that lie in them.

    A single token is never a piece of its own, because a mixer would take it for generation and
    might run other code: it is run again together with the piece before it.
    """
    pieces = []
    for start, stop in spans:
        inside = {column for column in cuts if start < column < stop}
        bounds = sorted({start, stop} | inside)
        for number in range(1, len(bounds)):
            begin = bounds[number - 1]
            if number > 1 and bounds[number] - begin == 1:
                begin = bounds[number - 2]
            pieces.append(Piece(begin, bounds[number], continued=begin > start))
    return pieces


def mixers_of(model: object) -> list[Any]:
    """The layers with a recurrent or convolution state.

    Each of them has a convolution over its tokens.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [module for module in modules if hasattr(module, "layer_idx") and _convolves(module)]


def _convolves(module: nn.Module) -> bool:
    return any(isinstance(child, nn.Conv1d) for child in module.children())


def cache_name(mixer: nn.Module, given: Collection[str]) -> str:
    """The name by which a mixer takes its cache, among the names of the arguments that it is given.

    Raises TypeError where none of them is known: under another name the mixer would ignore the
    cache, and lose its state without an error.
    """
    for name in CACHE_NAMES:
        if name in given:
            return name
    known = " or ".join(CACHE_NAMES)
    raise TypeError(f"{type(mixer).__name__} is given no cache as {known}, but {sorted(given)}")


def _of_a_state(
    mixer: Any,
    original: Callable[..., Tensor],
    name: str,
) -> MixerForward:
    """The mixer's original forward, as a function of its input and a state."""
    layers = mixer.layer_idx + 1
    solves = hasattr(sys.modules[type(mixer).__module__], "torch_chunk_gated_delta_rule")
    options = {"chunk_size": CHUNK} if solves else {}

    def forward(hidden: Tensor, state: LinearAttentionLayer) -> Tensor:
        # Some mixers query the cache's last layer when they mean their own.
        cache = Cache(layers=[state] * layers)
        return original(hidden, **{name: cache}, **options)

    return forward


def _stacked(states: Sequence[LinearAttentionLayer]) -> LinearAttentionLayer:
    """Stack states into one, a row each.

    Before a response's first token there is no state, which is the same as zeros.
    """
    filled = [state for state in states if any(state.has_previous_state.values())]
    if not filled:
        return copy.deepcopy(states[0])
    stacked = copy.deepcopy(filled[0])
    for name in ("conv_states", "recurrent_states"):
        stacked_parts = getattr(stacked, name)
        for number, like in stacked_parts.items():
            if like is None:
                continue
            parts = [getattr(state, name)[number] for state in states]
            rows = [torch.zeros_like(like) if part is None else part for part in parts]
            stacked_parts[number] = torch.cat(rows)
    return stacked
