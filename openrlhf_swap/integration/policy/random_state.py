"""The random state of a training process, and what its checkpoint may hold."""

from __future__ import annotations

import os
import random
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch


def save(path: Path) -> None:
    """Write the state of Python's, numpy's, torch's and the accelerator's generators."""
    legacy = np.random.get_state(legacy=True)
    assert isinstance(legacy, tuple)
    name, keys, position, has_gauss, gauss = legacy
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (name, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    torch.save(state, path)


def load(path: Path) -> None:
    """Restore what `save` wrote."""
    state = torch.load(path, weights_only=True)
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    torch.set_rng_state(state["torch"])
    if "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"])


def forbid_pickles() -> None:
    """Load checkpoints as data in this process: a pickle in them that wants to run code is refused by torch.

    DeepSpeed asks for the opposite when it loads, so torch is told by its environment variable (a user's own value
    wins); the few classes that DeepSpeed puts into its own files are allowed by name.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    os.environ.setdefault("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    allowed = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
    # Python 3.11.0 to 3.11.3, Debian 12 has one, write a member of an enumeration as getattr(its class, its name).
    torch.serialization.add_safe_globals([*allowed, (_member, "builtins.getattr")])


def _member(kind: object, name: str) -> Enum:
    """What stands for getattr when checkpoints are read: it reaches the members of enumerations, and nothing else."""
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise UnpicklingError(f"{name} of {kind} is asked for, which is not an enumeration")
    return kind[name]
