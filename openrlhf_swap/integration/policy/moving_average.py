"""The moving average of the weights (`--train.enable_ema`): in float32, in main memory, and in checkpoints.

OpenRLHF keeps it in bfloat16, which rounds away what an update adds to it, and leaves it out of checkpoints. The first
rank saves the model, so it alone keeps the average; the others' is empty. Sharded weights (ZeRO-3) are refused before
a run starts.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

FILE = "moving_average.pt"


def begin(average: torch.nn.Module, first: bool) -> None:
    """Make a model that was just loaded the average: on the first rank in float32 and main memory, else empty."""
    for parameter in average.parameters():
        parameter.data = parameter.data.cpu().float() if first else parameter.data.new_empty(0)


def update(average: torch.nn.Module, model: torch.nn.Module, beta: float) -> None:
    """Move the average by `1 - beta` of the way to the model's weights."""
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.data.lerp_(weight.data.cpu().float(), 1 - beta)


@contextmanager
def rounded(average: torch.nn.Module | None) -> Iterator[None]:
    """Hold the average in bfloat16 meanwhile, as the policy is exported; nothing for None."""
    exact = [(parameter, parameter.data) for parameter in average.parameters()] if average is not None else []
    for parameter, data in exact:
        parameter.data = data.bfloat16()
    try:
        yield
    finally:
        for parameter, data in exact:
            parameter.data = data


def save(checkpoint: Path, average: torch.nn.Module, strategy: Any) -> None:
    weights = [parameter.data for parameter in average.parameters()]
    torch.save({"weights": weights, "updates": strategy.time_steps["ema"]}, checkpoint / FILE)


def load(checkpoint: Path, average: torch.nn.Module, strategy: Any) -> None:
    state = torch.load(checkpoint / FILE, weights_only=True, mmap=True)
    for parameter, saved in zip(average.parameters(), state["weights"], strict=True):
        parameter.data.copy_(saved)
    strategy.time_steps["ema"] = state["updates"]
