"""Answer branches in recurrent and convolution layers, which keep a small state instead of keys.

Such a layer (a mixer) gets its rows in pieces that end where branches start, and its state is copied there; then each
branch continues from its own state, several of them in a batch. The rest of the model runs as usual, so the forward
costs about the same.

A mixer gets one row at a time, without padding: states of different lengths cannot be batched.
"""

import copy
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import LinearAttentionLayer

from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.branch_attention import Branch

# Tokens that a gated delta rule is solved for at a time. Without kernels transformers loops over them, and its default
# of 64 is longer than a branch.
CHUNK = 12
# A mixer's unwrapped forward, of (rows, tokens, hidden) and the state to continue from, which it advances.
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
    """Meanwhile a model's mixers run the rows of a forward, of `tokens` each, and the branches behind them.

    Nothing happens if the model, or what it wraps, has no mixers. `spans` are the columns of each response's first
    token and the one after its last. `agree` maps this rank's number of calls of a mixer to the largest of all ranks
    that run in lockstep.
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
        origins = [states[branch.end] if branch.end > branch.first else fresh for branch in branches]
        mixed = forward(behind[side_by_side.clamp(max=len(behind) - 1)], _stacked(origins))
        place = torch.arange(len(behind), device=device)
        number = torch.searchsorted(starts, place, right=True) - 1
        own = mixed[number, (place - starts[number]).clamp(max=width - 1)]
        return torch.cat([part.view(len(hidden), -1, part.shape[-1]) for part in (output, own)], dim=1)

    with ExitStack() as stack:
        for mixer in mixers:
            stack.enter_context(replaced(mixer, "forward", _calling(mixer, mixer.forward, run)))
        yield


def cut_into_pieces(spans: Sequence[tuple[int, int]], cuts: Collection[int]) -> list[tuple[int, int, bool]]:
    """The spans, cut at the columns: first column, column after the last, and whether the piece continues another.

    A single token is never a piece of its own, because a mixer would take it for generation and might run other code:
    it is run again together with the piece before it.
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
    """The layers with a recurrent or convolution state: each of them has a convolution over its tokens."""
    modules = model.modules() if isinstance(model, nn.Module) else ()
    return [
        module
        for module in modules
        if hasattr(module, "layer_idx") and any(isinstance(child, nn.Conv1d) for child in module.children())
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
    """Stack states into one, a row each. Before a row's first token there is no state, which is the same as zeros."""
    filled = [state for state in states if any(state.has_previous_state.values())]
    if not filled:
        return copy.deepcopy(states[0])
    stacked = copy.deepcopy(filled[0])
    for name in ("conv_states", "recurrent_states"):
        for number, like in getattr(stacked, name).items():
            if like is not None:
                parts = [getattr(state, name)[number] for state in states]
                rows = torch.cat([torch.zeros_like(like) if part is None else part for part in parts])
                getattr(stacked, name)[number] = rows
    return stacked
