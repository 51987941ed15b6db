"""Checkpoints of the policy: what goes into one beside DeepSpeed's files, and when it is complete."""

import os
import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError

from openrlhf_swap.errors import CheckpointError, first_line
from openrlhf_swap.integration.policy.weights import load_average, save_average
from openrlhf_swap.runs import checkpoints


class PolicyCheckpoints:
    """Finishes the checkpoints of one run, rotates them, and keeps random state and moving average
    in them.
    """

    def __init__(self, strategy: Any) -> None:
        self._strategy, self._path = strategy, Path(strategy.args.ckpt.path)
        self._folder = self._path / checkpoints.FOLDER
        self._latest = self._folder / checkpoints.LATEST
        forbid_pickles()

    @contextmanager
    def explained_loading(self) -> Iterator[None]:
        """Turn what torch says of a broken checkpoint into a remedy, and compare what the ranks
        have loaded.

        Raises CheckpointError for a file that is broken or holds more than data, and for a
        checkpoint that only some of the ranks see: the others have loaded nothing, without a word.
        """
        try:
            yield
        except (UnpicklingError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(
                error
            ):  # not of a file
                raise
            lines = [line.strip() for line in str(error).splitlines()]
            reason = next((line for line in lines if "Unsupported" in line), first_line(error))
            raise CheckpointError(
                f"the checkpoint in --ckpt.path {self._path} cannot be loaded ({reason}); delete its folder to use "
                "the one before it"
            ) from error
        if self._strategy.args.ckpt.load_enable:
            seen = self._latest.read_text(encoding="utf-8") if self._latest.exists() else None
            tags: list[str | None] = [None] * torch.distributed.get_world_size()
            torch.distributed.all_gather_object(tags, seen)
            expected = next(filter(None, tags), None)
            if others := [rank for rank, tag in enumerate(tags) if tag != expected]:
                raise self._not_shared_by(others, f"rank(s) {{}} did not find {expected}")

    def load_beside_the_model(self, average: Any) -> None:
        """Restore random state and moving average (None for none) of the checkpoint that was
        loaded.
        """
        folder = self._folder / self._latest.read_text(encoding="utf-8")
        load_random_state(_random_state_file(folder, self._strategy.get_rank()))
        if average is not None and self._strategy.is_rank_0():
            load_average(folder, average, self._strategy)

    @contextmanager
    def writing(self, tag: str, average: Any, with_model: bool, with_export: bool) -> Iterator[str]:
        """Yield the name under which OpenRLHF is to write its part, then finish the checkpoint.

        Only after that, the oldest one is deleted, or the one that was the best. OpenRLHF's part
        are DeepSpeed's files (`with_model`) and the model in Hugging Face format (`with_export`).
        Raises CheckpointError when something cannot be written, or not to one place by all ranks.
        """
        name, first = checkpoints.UNFINISHED + tag, self._strategy.is_rank_0()
        try:
            if first:
                shutil.rmtree(self._folder / name, ignore_errors=True)
            torch.distributed.barrier()
            yield name
            if with_export and first:
                shutil.rmtree(self._path / f"{tag}_hf", ignore_errors=True)  # of an earlier run
                (self._path / f"{name}_hf").rename(self._path / f"{tag}_hf")
            if with_model:
                folder, ckpt = self._folder / name, self._strategy.args.ckpt
                save_random_state(_random_state_file(folder, self._strategy.get_rank()))
                if average is not None and first:
                    save_average(folder, average, self._strategy)
                torch.distributed.barrier()
                if first:
                    ranks = range(torch.distributed.get_world_size())
                    if missing := [
                        rank for rank in ranks if not _random_state_file(folder, rank).exists()
                    ]:
                        raise self._not_shared_by(missing, "the files of rank(s) {} are missing")
                    checkpoints.finish(folder)
                    checkpoints.rotate(self._path, ckpt.max_num, ckpt.max_mem * 2**30)
        except CheckpointError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            # What was written stays until the next start: other ranks may still be writing.
            raise CheckpointError(
                f"checkpoint {tag} cannot be written to --ckpt.path {self._path} ({error}); free some space, "
                f"or name another disk: {checkpoints.how_to_resume(self._path)}"
            ) from error

    def _not_shared_by(self, ranks: list[int], reason: str) -> CheckpointError:
        return CheckpointError(
            f"--ckpt.path {self._path} is not shared by all nodes: {reason.format(', '.join(map(str, ranks)))}; use a "
            "folder on storage that all nodes see"
        )


def _random_state_file(folder: Path, rank: int) -> Path:
    return folder / f"random_state_{rank}.pt"


def save_random_state(path: Path) -> None:
    """Write the state of Python's, numpy's, torch's and the accelerator's generators, as data."""
    name, keys, *rest = cast(tuple[Any, ...], np.random.get_state())
    state = {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }
    torch.save(state, path)


def load_random_state(path: Path) -> None:
    state = torch.load(path, weights_only=True)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])


def forbid_pickles() -> None:
    """Load checkpoints as data in this process: a pickle in them that wants to run code is refused
    by torch.

    DeepSpeed asks for the opposite when it loads, so torch is told by its environment variable (a
    user's own wins).
    """
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address

    os.environ.setdefault("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")
    allowed = [LossScaler, DynamicLossScaler, ZeroStageEnum, fragment_address]
    # Python 3.11.0 to 3.11.3, Debian 12 has one, write a member of an enumeration as getattr(its
    # class, its name).
    torch.serialization.add_safe_globals([*allowed, (_member, "builtins.getattr")])


def _member(kind: object, name: str) -> Enum:
    """Stands for getattr when checkpoints are read: it reaches members of enumerations, and nothing
    else.
    """
    if not (isinstance(kind, type) and issubclass(kind, Enum)):
        raise UnpicklingError(f"{name} of {kind} is asked for, which is not an enumeration")
    return kind[name]
