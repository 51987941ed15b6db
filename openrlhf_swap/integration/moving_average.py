"""The moving average of the weights (`--train.enable_ema`) in checkpoints: OpenRLHF leaves it out of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.errors import CheckpointError


def save(path: Path, model: torch.nn.Module, strategy: Any) -> None:
    """Write this rank's part of the average and the number of updates it has seen."""
    torch.save({"weights": [part.cpu() for part in _parts(model)], "updates": strategy.time_steps["ema"]}, path)


def load(path: Path, model: torch.nn.Module, strategy: Any) -> None:
    """Restore what `save` wrote.

    Raises:
        CheckpointError: when the checkpoint has no average.
    """
    if not path.exists():
        raise CheckpointError(
            f"--train.enable_ema is given, but checkpoint {path.parent} was written without it: leave it out"
        )
    state = torch.load(path, weights_only=True, mmap=True)
    for part, saved in zip(_parts(model), state["weights"], strict=True):
        part.copy_(saved)
    strategy.time_steps["ema"] = state["updates"]


def _parts(model: torch.nn.Module) -> list[Tensor]:
    """Each parameter; under ZeRO-3 what this rank holds of it."""
    return [getattr(parameter, "ds_tensor", parameter).data for parameter in model.parameters()]
