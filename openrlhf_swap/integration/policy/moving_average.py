"""The moving average of the weights (`--train.enable_ema`) in checkpoints: OpenRLHF leaves it out of them.

All ranks have the same average: sharded ones (ZeRO-3) are refused before a run starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from openrlhf_swap.errors import CheckpointError

FILE = "moving_average.pt"


def save(checkpoint: Path, model: torch.nn.Module, strategy: Any) -> None:
    """Write the average and the number of updates it has seen."""
    weights = [parameter.data.cpu() for parameter in model.parameters()]
    torch.save({"weights": weights, "updates": strategy.time_steps["ema"]}, checkpoint / FILE)


def load(checkpoint: Path, model: torch.nn.Module, strategy: Any) -> None:
    """Restore what `save` wrote.

    Raises:
        CheckpointError: when the checkpoint has no average.
    """
    if not (checkpoint / FILE).exists():
        raise CheckpointError(
            f"--train.enable_ema is given, but checkpoint {checkpoint} was written without it: leave it out"
        )
    state = torch.load(checkpoint / FILE, weights_only=True, mmap=True)
    for parameter, saved in zip(model.parameters(), state["weights"], strict=True):
        parameter.data.copy_(saved)
    strategy.time_steps["ema"] = state["updates"]
