"""The policy's hidden states at chosen tokens, out of a forward that runs anyway.

Two states of each token, joined: the one in the middle of the layers, and the last one, which the
head reads. A fixed random matrix projects wider ones to `WIDTH`: a regression on them loses little,
and they are small enough to be sent.

Shapes: B rows, T tokens a row, D the model's width.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

WIDTH = 128  # numbers of each of the two states


@dataclass(frozen=True)
class StateRequest:
    """The tokens of a response whose states are wanted."""

    row: int  # in the batch
    positions: tuple[
        int, ...
    ]  # in the padded row: the last prompt token's, then each step's last token's


@contextmanager
def recording_states(
    model: Any, attention_mask: Tensor, requests: Sequence[StateRequest], packed: bool = False
) -> Iterator[list[Tensor]]:
    """Within it, run one forward over the rows; afterwards, the list that it yields has the states
    of each request.

    They are (K+1, d) float32 tensors on the CPU, d at most twice `WIDTH`. Later forwards in it
    leave no trace. Takes a PreTrainedModel without wrappers and adapters (its wrapper may be what
    runs) and a (B, T) mask, 1 for tokens. `packed`, the forward has all rows in one, without
    padding.
    """
    states: list[Tensor] = []
    if not requests:
        yield states
        return
    places = [(request.row, place) for request in requests for place in request.positions]
    rows, columns = torch.tensor(places).T.to(attention_mask.device)
    if packed:
        columns = (attention_mask.flatten().cumsum(0) - 1)[rows * attention_mask.shape[1] + columns]
        rows = torch.zeros_like(columns)
    layer, head = middle_layer(model), model.get_output_embeddings()
    parts: list[Tensor] = []

    def keep(_module: nn.Module, inputs: Any, output: Any = None) -> None:
        """After the layer, or before the head."""
        found = inputs if output is None else output
        if len(parts) < (1 if layer is None else 2):
            parts.append(
                projected((found if isinstance(found, Tensor) else found[0])[rows, columns])
            )

    hooks = [] if layer is None else [layer.register_forward_hook(keep)]
    hooks.append(head.register_forward_pre_hook(keep))
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()
    states += torch.split(
        torch.cat(parts, dim=-1).cpu(), [len(request.positions) for request in requests]
    )


def read_states(
    model: PreTrainedModel,
    sequences: Tensor,
    attention_mask: Tensor,
    requests: Sequence[StateRequest],
) -> list[Tensor]:
    """Run a forward and return the (K+1, d) float32 states of each request, for a trainer of your
    own.

    Takes a causal language model, (B, T) int64 token ids, padded on either side, and their mask, 1
    for tokens. Where a forward over the same rows runs anyway, run it within `recording_states`
    instead.
    """
    positions = (attention_mask.long().cumsum(-1) - 1).clamp(min=0)
    with torch.no_grad(), recording_states(model, attention_mask, requests) as states:
        model(sequences, attention_mask=attention_mask, position_ids=positions, use_cache=False)
    return states


def middle_layer(model: Any) -> nn.Module | None:
    """The layer after which half of the language model's layers have run; None where they cannot be
    told.
    """
    count = model.config.get_text_config().num_hidden_layers
    decoder = model.get_decoder()
    stacks = [
        module
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    return stacks[0][count // 2 - 1] if stacks and count > 1 else None


def projected(states: Tensor) -> Tensor:
    """(n, D) states as (n, min(D, `WIDTH`)) float32, each first divided by its root mean square, as
    in a norm.
    """
    states = states.float()
    states = states * torch.rsqrt(states.square().mean(-1, keepdim=True) + 1e-6)
    size = states.shape[-1]
    return states if size <= WIDTH else states @ _projection(size, states.device)


@lru_cache(maxsize=4)
def _projection(size: int, device: torch.device) -> Tensor:
    """(size, `WIDTH`), the same in every process and run."""
    matrix: Tensor = torch.randn(size, WIDTH, generator=torch.Generator().manual_seed(0))
    return (matrix / math.sqrt(size)).to(device)
