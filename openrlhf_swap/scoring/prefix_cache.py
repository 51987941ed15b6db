"""What a forward over whole rows keeps for the branches: keys and values of all tokens, and states before some.

A recurrent or convolution layer (a mixer) reads a row from left to right and keeps a small state instead of keys. In
the first forward each mixer gets its rows in pieces that end where a branch starts, and its state is copied there; the
rest of the model runs as usual, so the pass costs about the same. In the second forward each branch continues from its
own state, all branches in one batch.

In the first forward a mixer gets one row at a time, without padding: states of different lengths cannot be batched.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache, DynamicCache, PretrainedConfig
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

from openrlhf_swap.packages.replace import replaced
from openrlhf_swap.scoring.answer import ScoreRequest

# Tokens that a gated delta rule is solved for at a time. Without kernels transformers loops over them, and its default
# of 64 is longer than a branch.
CHUNK = 12
Place = tuple[int, int]  # a row, and a position in it
# A mixer's unwrapped forward, of (rows, tokens, hidden) and the state to continue from, which it advances.
MixerForward = Callable[[Tensor, LinearAttentionLayer], Tensor]
Run = Callable[[int, MixerForward, Tensor], Tensor]  # the layer's index, its forward and its input


class PrefixCache(DynamicCache):
    """Keeps all keys, even outside a layer's window (which a branch may still see), and recurrent states."""

    def __init__(self, config: PretrainedConfig, model: object, packed: bool = False) -> None:
        """Take the configuration, the model or its wrapper, and whether all rows are packed into one."""
        self.packed = packed
        super().__init__(config=config)
        layers: list[Any] = self.layers
        for number, layer in enumerate(layers):
            if isinstance(layer, LinearAttentionAndSlidingWindowAttentionLayer):
                layers[number] = LinearAttentionAndFullAttentionLayer(layer.number_of_states)
            elif isinstance(layer, DynamicSlidingWindowLayer):
                layers[number] = DynamicLayer()  # type: ignore[no-untyped-call]
        modules = model.modules() if isinstance(model, nn.Module) else ()
        self._layers = [module for module in modules if hasattr(module, "layer_idx")]
        self._mixers = [module for module in self._layers if _is_mixer(module)]
        self._states: dict[tuple[int, Place], LinearAttentionLayer] = {}

    @contextmanager
    def recording(
        self, attention_mask: Tensor, requests: Sequence[ScoreRequest], agree: Callable[[int], int] = int
    ) -> Iterator[None]:
        """Within it, run one forward over the rows: with this cache, or without any if they are packed.

        Packed, position ids keep responses apart, which transformers ignores when it is given a cache: then only the
        attention layers get it.

        Args:
            attention_mask: (B, T), 1 for tokens; rows may be padded at their ends.
            requests: for these rows; states before the last tokens of their prefixes are kept.
            agree: maps this rank's number of calls to the largest of all ranks that run in lockstep.
        """
        with self._capturing() if self.packed else self._recording(attention_mask, requests, agree):
            yield

    @contextmanager
    def _capturing(self) -> Iterator[None]:
        def give(_layer: nn.Module, inputs: Any, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            return inputs, options | ({"past_key_values": self} if "past_key_values" in options else {})

        with ExitStack() as hooks:
            for layer in self._layers:
                hooks.callback(layer.register_forward_pre_hook(give, with_kwargs=True).remove)
            yield

    @contextmanager
    def _recording(
        self, attention_mask: Tensor, requests: Sequence[ScoreRequest], agree: Callable[[int], int]
    ) -> Iterator[None]:
        if not self._mixers:  # nothing to record; finding the pieces would make the host wait for the mask
            yield
            return
        pieces = _pieces(attention_mask, [(request.row, end) for request in requests for end in request.prefix_ends])
        calls = agree(len(pieces))

        def run(layer_index: int, forward: MixerForward, hidden: Tensor) -> Tensor:
            output = None
            for row, start, stop in pieces:
                state = copy.deepcopy(self._states.get((layer_index, (row, start)), self._fresh(layer_index)))
                mixed = forward(hidden[row : row + 1, start:stop], state)
                self._states[layer_index, (row, stop)] = state
                output = mixed.new_zeros(*hidden.shape[:2], mixed.shape[-1]) if output is None else output
                output[row, start:stop] = mixed[0]
            for _ in range(calls - len(pieces)):
                forward(hidden[:1, :1], self._fresh(layer_index))
            assert output is not None, "a batch without tokens"
            return output

        with _wrapped(self._mixers, run):
            yield

    @contextmanager
    def resumed(self, places: Sequence[Place], width: int) -> Iterator[None]:
        """Run branches of `width` tokens, those of a row one after the other, each from the state at its place."""

        def run(layer_index: int, forward: MixerForward, hidden: Tensor) -> Tensor:
            state = _stacked([self._states.get((layer_index, place), self._fresh(layer_index)) for place in places])
            mixed = forward(hidden.view(len(places), width, -1), state)
            return mixed.reshape(*hidden.shape[:2], -1)

        with _wrapped(self._mixers, run):
            yield

    def _fresh(self, layer_index: int) -> LinearAttentionLayer:
        layer: Any = self.layers[layer_index]
        return LinearAttentionLayer(layer.number_of_states)


def _pieces(attention_mask: Tensor, places: Sequence[Place]) -> list[tuple[int, int, int]]:
    """All rows without their padding, cut at the places: (row, first position, position after the last).

    A single token is never a piece of its own, because a mixer would take it for generation and might run other code:
    it is run again together with the piece before it.
    """
    visible = attention_mask.bool()
    starts = visible.int().argmax(-1).tolist()
    counts = visible.sum(-1).tolist()
    pieces = []
    for row, (start, count) in enumerate(zip(starts, counts, strict=True)):
        # An idle rank's request may point at padding.
        cuts = {position for at, position in places if at == row and start < position < start + count}
        bounds = sorted({start, start + count} | cuts)
        for number in range(1, len(bounds)):
            single = number > 1 and bounds[number] - bounds[number - 1] == 1
            pieces.append((row, bounds[number - 1 - single], bounds[number]))
    return pieces


def _is_mixer(module: nn.Module) -> bool:
    """Whether it keeps a recurrent or convolution state: each such layer has a convolution over its tokens."""
    return any(isinstance(child, nn.Conv1d) for child in module.children())


@contextmanager
def _wrapped(mixers: Sequence[nn.Module], run: Run) -> Iterator[None]:
    """Replace the mixers' forwards by `run`."""
    with ExitStack() as stack:
        for mixer in mixers:
            stack.enter_context(replaced(mixer, "forward", _calling(mixer, mixer.forward, run)))
        yield


def _calling(mixer: Any, forward: Callable[..., Tensor], run: Run) -> Callable[..., Tensor]:
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
