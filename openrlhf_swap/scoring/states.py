"""The policy's hidden states at chosen tokens, out of a forward that runs anyway.

A token has two states, joined: the one in the middle of the layers, and the last one, which the
head reads. A fixed random matrix projects wider ones to `WIDTH`: a regression on them loses little,
and they are small enough to be sent.

Shapes: B rows, T tokens a row, D the model's width.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from openrlhf_swap.scoring.answer import ScoreRequest, run_rows

WIDTH = 128  # numbers of each of the two states


@contextmanager
def recording_states(
    model: Any,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool = False,
) -> Iterator[list[Tensor]]:
    """Record the states of each request in one forward over the rows, run inside the block.

    Afterwards the list that it yields has a (K+1, d) float32 tensor on the CPU for each request, of
    the tokens at its `prefix_ends`; d is at most twice `WIDTH`. Later forwards inside the block
    leave no trace. Takes a PreTrainedModel without wrappers and adapters (its wrapper may be what
    runs) and a (B, T) mask, 1 for tokens. `packed` says that the forward has all rows in one,
    without padding.
    """
    states: list[Tensor] = []
    if not requests:
        yield states
        return
    rows, columns = _places_in_pass(attention_mask, requests, packed)
    layer = middle_layer(model)
    wanted = 1 if layer is None else 2
    parts: list[Tensor] = []

    def keep(*passed: Any) -> None:
        """Keep the last thing that a hook gets: the output of a layer, or the head's inputs."""
        if len(parts) < wanted:
            hidden = passed[-1]
            tensor = hidden if isinstance(hidden, Tensor) else hidden[0]
            parts.append(projected(tensor[rows, columns]))

    with ExitStack() as hooks:
        if layer is not None:
            hooks.enter_context(layer.register_forward_hook(keep))
        head = model.get_output_embeddings()
        hooks.enter_context(head.register_forward_pre_hook(keep))
        yield states
    counts = [len(request.prefix_ends) for request in requests]
    joined = torch.cat(parts, dim=-1).cpu()
    states += torch.split(joined, counts)


def _places_in_pass(
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
    packed: bool,
) -> tuple[Tensor, Tensor]:
    """The rows and columns, in the forward, of all requests' prefix ends."""
    places: list[tuple[int, int]] = []
    for request in requests:
        for place in request.prefix_ends:
            places.append((request.row, place))
    rows, columns = torch.tensor(places).T.to(attention_mask.device)
    if not packed:
        return rows, columns
    packed_columns = attention_mask.flatten().cumsum(0) - 1
    columns = packed_columns[rows * attention_mask.shape[1] + columns]
    return torch.zeros_like(columns), columns


def read_states(
    model: nn.Module,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[ScoreRequest],
) -> list[Tensor]:
    """Run a forward and return the (K+1, d) float32 states at each request's `prefix_ends`.

    Takes a causal language model, (B, T) int64 token ids, padded on either side, and their mask, 1
    for tokens. Where a forward over the same rows runs anyway, run it within `recording_states`
    instead.
    """
    with torch.no_grad(), recording_states(model, attention_mask, requests) as states:
        run_rows(model, sequences, attention_mask)
    return states


def middle_layer(model: Any) -> nn.Module | None:
    """The layer after which half of the model's layers have run; None where it cannot be told."""
    count = model.config.get_text_config().num_hidden_layers
    decoder = model.get_decoder()
    if count < 2:
        return None
    for stack in decoder.modules():
        if isinstance(stack, nn.ModuleList) and len(stack) == count:
            layer: nn.Module = stack[count // 2 - 1]
            return layer
    return None


def projected(states: Tensor) -> Tensor:
    """(n, D) states as (n, min(D, `WIDTH`)) float32.

    Each is first divided by its root mean square, as in a norm.
    """
    states = states.float()
    mean_square = states.square().mean(-1, keepdim=True)
    states = states * torch.rsqrt(mean_square + 1e-6)
    size = states.shape[-1]
    if size <= WIDTH:
        return states
    return states @ _projection(size, states.device)


@lru_cache(maxsize=4)
def _projection(size: int, device: torch.device) -> Tensor:
    """(size, `WIDTH`), the same in every process and run."""
    generator = torch.Generator().manual_seed(0)
    matrix: Tensor = torch.randn(size, WIDTH, generator=generator)
    matrix /= math.sqrt(size)
    return matrix.to(device)
