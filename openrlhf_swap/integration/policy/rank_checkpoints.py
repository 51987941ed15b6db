"""Checkpoints that the ranks of the policy write and load together."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError

from openrlhf_swap.errors import CheckpointError, first_line
from openrlhf_swap.integration.policy.safe_loading import forbid_pickles
from openrlhf_swap.runs import checkpoints


class PolicyCheckpoints:
    """Finishes and rotates the checkpoints of a run, and keeps the ranks' random states in them."""

    def __init__(self, strategy: Any) -> None:
        self._ckpt = strategy.args.ckpt
        self._strategy = strategy
        self._path = Path(self._ckpt.path)
        self._folder = self._path / checkpoints.FOLDER
        self._latest = self._folder / checkpoints.LATEST
        forbid_pickles()

    @property
    def _rank(self) -> int:
        """The rank of this process; before the ranks have met, it is 0 in all of them."""
        return self._strategy.get_rank()

    @contextmanager
    def explained_loading(self) -> Iterator[None]:
        """Raise CheckpointError, with a remedy, for a checkpoint that the block cannot load.

        Its file is broken or gone, or holds more than data.
        """
        try:
            yield
        except (UnpicklingError, RuntimeError, OSError, AssertionError) as error:
            is_other = isinstance(error, RuntimeError) and "PytorchStreamReader" not in str(error)
            if is_other or not self._latest.exists():
                raise
            raise CheckpointError(
                f"the checkpoint in --ckpt.path {self._path} cannot be loaded ({_reason(error)}); "
                "delete its folder to use the one before it"
            ) from error

    def load_random_state(self) -> None:
        """Restore the random state of this rank from the checkpoint that was loaded."""
        folder = self._folder / self._latest.read_text(encoding="utf-8")
        load_random_state(_random_state_file(folder, self._rank))

    @contextmanager
    def writing(self, tag: str, with_model: bool, with_export: bool) -> Iterator[str]:
        """Yield the name under which OpenRLHF is to write its part, then finish the checkpoint.

        OpenRLHF's part are DeepSpeed's files (`with_model`) and the model in Hugging Face format
        (`with_export`). Only after it, the oldest checkpoint is deleted, or the one that was the
        best. Raises CheckpointError when something cannot be written, or not to one place by all
        ranks.
        """
        name = checkpoints.UNFINISHED + tag
        try:
            if self._rank == 0:
                shutil.rmtree(self._folder / name, ignore_errors=True)
            torch.distributed.barrier()
            yield name
            if with_export and self._rank == 0:
                export = self._path / f"{tag}_hf"
                shutil.rmtree(export, ignore_errors=True)  # an earlier run's
                (self._path / f"{name}_hf").rename(export)
            if with_model:
                self._finish(self._folder / name)
        except CheckpointError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            # What was written stays until the next start: other ranks may still be writing.
            remedy = checkpoints.how_to_resume(self._ckpt)
            raise CheckpointError(
                f"checkpoint {tag} cannot be written to --ckpt.path {self._path} ({error}); "
                f"free some space, or name another disk: {remedy}"
            ) from error

    def _finish(self, folder: Path) -> None:
        """Add random states and checksums; rank 0 names the checkpoint, and deletes old ones."""
        ranks = torch.distributed.get_world_size()
        save_random_state(_random_state_file(folder, self._rank))
        torch.distributed.barrier()
        checkpoints.write_checksums(folder, self._rank, ranks)
        torch.distributed.barrier()
        if self._rank != 0:
            return
        missing = [rank for rank in range(ranks) if not _random_state_file(folder, rank).exists()]
        if missing:
            raise CheckpointError(
                f"--ckpt.path {self._path} is not shared by all nodes: the files of rank(s) "
                f"{', '.join(map(str, missing))} are missing; use a folder on storage that all "
                "nodes see"
            )
        checkpoints.finish(folder)
        checkpoints.rotate(self._path, self._ckpt.max_num, self._ckpt.max_mem * 2**30)


def _reason(error: Exception) -> str:
    """The line of torch's message that names what is not supported, or the first one."""
    for line in str(error).splitlines():
        if "Unsupported" in line:
            return line.strip()
    return first_line(error)


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
    """Restore what `save_random_state` has written."""
    state = torch.load(path, weights_only=True)
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
