"""Checkpoints that are loaded as data: a pickle in them that wants to run code is refused."""

import os
from enum import Enum
from pickle import UnpicklingError

import torch


def forbid_pickles() -> None:
    """Let torch load nothing but data in this process.

    DeepSpeed asks for the opposite when it loads, so torch is told by its environment variable,
    which wins; so does a user's own.
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    os.environ.setdefault("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    allowed = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
    # Python 3.11.0 to 3.11.3, which Debian 12 has, writes a member of an enumeration as
    # getattr(its class, its name).
    torch.serialization.add_safe_globals([*allowed, (_member, "builtins.getattr")])


def _member(kind: object, name: str) -> Enum:
    """Stands for getattr when checkpoints are read: it reaches members of enumerations alone."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind[name]
    raise UnpicklingError(f"{name} of {kind} is asked for, which is not an enumeration")
