"""Branches through recurrent and convolution layers, which keep a state instead of keys."""

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache
from transformers.cache_utils import LinearAttentionLayer

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branches import Agree, Layout, ResponseColumns, Rows

# Tokens that a gated delta rule is solved for at a time. Without kernels transformers loops over
# them, and its default of 64 is longer than a branch.
SOLVED_TOKENS = 12
# By which mixers take their cache; from transformers 5.24 on it is the last.
CACHE_NAMES = ("cache_params", "past_key_values", "cache")

# A mixer's own forward, of (rows, tokens, hidden) and the state to continue from; it advances that.
MixerForward = Callable[[Tensor, LinearAttentionLayer], Tensor]


class Piece(NamedTuple):
    """A part of a response, from one column to before another."""

    first: int  # the column of the response's first token
    start: int
    stop: int


# States by the column of the response's first token, and the column before which they stand.
States = dict[tuple[int, int], LinearAttentionLayer]


class BranchedMixers:
    """The recurrent and convolution layers (mixers) of one forward over rows and branches.

    A mixer gets its rows in pieces that end where branches start, and its state is copied there;
    then all branches continue from their states, side by side in a batch. Rows come one at a time,
    without padding: states of different lengths cannot be batched.
    """

    def __init__(self, model: nn.Module, rows: Rows, layout: Layout, agree: Agree) -> None:
        """Take the model, and where rows and branches stand; `agree` takes numbers of pieces."""
        self._mixers = mixers_of(model)
        self._tokens = rows.tokens
        self._layout = layout
        if not self._mixers:
            return
        cuts = {placed.branch.end for placed in layout.placed}
        self._pieces = cut_into_pieces(rows.responses, cuts)
        pieces = len(self._pieces)
        self._spare = agree(pieces) - pieces
        starts = [placed.start for placed in layout.placed]
        self._starts = torch.tensor(starts, device=layout.position.device)

    @contextmanager
    def replacing(self) -> Iterator[None]:
        """Let the mixers run rows and branches inside the block."""
        with ExitStack() as stack:
            for mixer in self._mixers:
                run = partial(self._run, mixer, mixer.forward)
                replacing = replaced(mixer, "forward", run)
                stack.enter_context(replacing)
            yield

    def _run(
        self, mixer: Any, original: Callable[..., Tensor], hidden_states: Tensor, **given: Any
    ) -> Tensor:
        """(B, T + n/B, hidden), in the place of the mixer's original forward."""
        forward = _of_a_state(mixer, original, cache_name(mixer, given))
        rows = hidden_states[:, : self._tokens]
        behind = hidden_states[:, self._tokens :]
        states: States = {}
        of_rows = self._run_rows(rows.flatten(0, 1), forward, states)
        for _call in range(self._spare):
            forward(rows[:1, :1], LinearAttentionLayer())
        of_branches = self._run_branches(behind.flatten(0, 1), forward, states)
        parts = [of_rows.view(rows.shape), of_branches.view(behind.shape)]
        return torch.cat(parts, dim=1)

    def _run_rows(self, rows: Tensor, forward: MixerForward, states: States) -> Tensor:
        """The (columns, hidden) output; `states` gets those before and after each piece."""
        output = torch.zeros_like(rows)
        for piece in self._pieces:
            if piece.start == piece.first:
                states[piece.first, piece.first] = LinearAttentionLayer()
            state = copy.deepcopy(states[piece.first, piece.start])
            own = slice(piece.start, piece.stop)
            output[own] = forward(rows[None, own], state)[0]
            states[piece.first, piece.stop] = state
        return output

    def _run_branches(self, behind: Tensor, forward: MixerForward, states: States) -> Tensor:
        """The (n, hidden) output of the branches' tokens, each branch continued from its state."""
        origins = []
        lengths = []
        for placed in self._layout.placed:
            branch = placed.branch
            origins.append(states[branch.first, branch.end])
            lengths.append(placed.stop - placed.start)
        # The branches are filled up to one width; mixers may run other code for one token.
        width = max(2, *lengths)
        place = torch.arange(len(behind), device=behind.device)
        offset = torch.arange(width, device=behind.device)
        side_by_side = self._starts[:, None] + offset
        in_a_batch = behind[side_by_side.clamp(max=len(behind) - 1)]
        mixed = forward(in_a_batch, _stacked(origins))
        # Tokens that only fill a row stand behind the last branch.
        number = self._layout.branch.clamp(max=len(origins) - 1)
        own_place = place - self._starts[number]
        return mixed[number, own_place]


def cut_into_pieces(responses: Sequence[ResponseColumns], cuts: Collection[int]) -> list[Piece]:
    """Cut the columns of each response at the cuts that lie in it.

    A mixer would take a single token for generation, and might run other code. So a piece of one
    token also has the tokens of the piece before it, which run again.
    """
    pieces = []
    for response in responses:
        inside = {column for column in cuts if response.first < column < response.stop}
        bounds = sorted({response.first, response.stop} | inside)
        for number, (start, stop) in enumerate(pairwise(bounds)):
            if number > 0 and stop - start == 1:
                start = bounds[number - 1]
            pieces.append(Piece(response.first, start, stop))
    return pieces


def mixers_of(model: nn.Module) -> list[Any]:
    """The layers with a recurrent or convolution state.

    Each of them has a convolution over its tokens.
    """
    layers = [module for module in model.modules() if hasattr(module, "layer_idx")]
    return [layer for layer in layers if _convolves(layer)]


def _convolves(layer: nn.Module) -> bool:
    return any(isinstance(child, nn.Conv1d) for child in layer.children())


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


def _of_a_state(mixer: Any, original: Callable[..., Tensor], name: str) -> MixerForward:
    """The mixer's original forward, as a function of its input and a state."""
    layers = mixer.layer_idx + 1
    solves = hasattr(sys.modules[type(mixer).__module__], "torch_chunk_gated_delta_rule")
    options = {"chunk_size": SOLVED_TOKENS} if solves else {}

    def forward(hidden: Tensor, state: LinearAttentionLayer) -> Tensor:
        # Some mixers query the cache's last layer when they mean their own.
        cache = Cache(layers=[state] * layers)
        return original(hidden, **{name: cache}, **options)

    return forward


def _stacked(states: Sequence[LinearAttentionLayer]) -> LinearAttentionLayer:
    """Stack states into one, a row each.

    Before a response's first token there is no state, which is the same as zeros.
    """
    filled = [state for state in states if state.has_previous_state[0]]
    if not filled:
        return LinearAttentionLayer()
    stacked = copy.deepcopy(filled[0])
    for name in ("conv_states", "recurrent_states"):
        parts = getattr(stacked, name)
        like = parts[0]
        if like is None:
            continue
        rows = []
        for state in states:
            row = getattr(state, name)[0]
            rows.append(torch.zeros_like(like) if row is None else row)
        parts[0] = torch.cat(rows)
    return stacked
