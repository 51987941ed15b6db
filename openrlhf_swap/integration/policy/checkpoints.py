"""Checkpoints of the policy: what goes into one beside DeepSpeed's files, and when it is complete."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed
from safetensors import SafetensorError

from openrlhf_swap.errors import CheckpointError, first_line
from openrlhf_swap.integration.policy import moving_average, random_state
from openrlhf_swap.runs import checkpoints


class PolicyCheckpoints:
    """Seals the checkpoints of one run, rotates them, and keeps random state and moving average in them."""

    def __init__(self, strategy: Any) -> None:
        """Takes the strategy, which leaves the rotation of checkpoints to this."""
        ckpt = strategy.args.ckpt
        self._strategy = strategy
        self._path, self._kept = Path(ckpt.path), (ckpt.max_num, ckpt.max_mem * 2**30)
        self._objective = strategy.args.swap.objective
        random_state.forbid_pickles()

    @contextmanager
    def explained_loading(self) -> Iterator[None]:
        """Turn torch's refusal of a pickle into an error with a remedy; afterwards, compare what the ranks have found.

        Raises:
            CheckpointError: for a pickle, and for a checkpoint that only some of the ranks see.
        """
        try:
            yield
        except pickle.UnpicklingError as error:
            lines = str(error).splitlines()
            reason = next((line.strip() for line in lines if "Unsupported" in line), first_line(error))
            raise CheckpointError(
                f"the checkpoint in --ckpt.path {self._path} holds more than data ({reason}); if you trust it all the "
                "same, set the environment variable TORCH_FORCE_WEIGHTS_ONLY_LOAD=0"
            ) from error
        if self._strategy.args.ckpt.load_enable:
            self._require_the_same_on_all_ranks()

    def load_beside_the_model(self, average: Any) -> None:
        """Restore random state and moving average (None for none) of the checkpoint that was loaded."""
        folder = self._folder_of(self._latest.read_text(encoding="utf-8"))
        random_state.load(_state_file(folder, self._strategy.get_rank()))
        if average is not None and self._strategy.is_rank_0():
            moving_average.load(folder, average, self._strategy)

    @contextmanager
    def writing(self, tag: str, average: Any, with_model: bool, with_export: bool) -> Iterator[str]:
        """Gives the name under which OpenRLHF is to write its part, and seals the checkpoint behind it.

        Only then the oldest one is deleted, or the one that was the best.

        Args:
            tag: the checkpoint's name.
            average: the moving average of the weights, or None.
            with_model: whether DeepSpeed's files are a part of it.
            with_export: whether the model in Hugging Face format is.

        Raises:
            CheckpointError: when it cannot be written, or not to one place by all ranks; the next start deletes what
                was written of it.
        """
        # OpenRLHF deletes the best one before it writes a better one, so this does not go by the name of one.
        name = f"new_{tag}" if tag.startswith("best") else tag
        folder, first = self._folder_of(name), self._strategy.is_rank_0()
        try:
            if first and with_model:
                checkpoints.begin(folder)
            torch.distributed.barrier()
            yield name
            if with_export and name != tag and first:
                shutil.rmtree(self._path / f"{tag}_hf", ignore_errors=True)  # of an earlier run
                (self._path / f"{name}_hf").rename(self._path / f"{tag}_hf")
            if with_model:
                self._seal(folder, tag, average)
        except CheckpointError:
            raise
        except (OSError, RuntimeError, SafetensorError) as error:
            # What was written stays, marked incomplete, until the next start: other ranks may still be writing.
            before = checkpoints.newest(self._path)
            way_on = (
                f"start again with --ckpt.load_enable to resume from {before}" if before else "no other was written"
            )
            raise CheckpointError(
                f"checkpoint {tag} cannot be written to --ckpt.path {self._path} ({error}); free some space, "
                f"or name another disk: {way_on}"
            ) from error

    def _seal(self, folder: Path, tag: str, average: Any) -> None:
        first = self._strategy.is_rank_0()
        random_state.save(_state_file(folder, self._strategy.get_rank()))
        if average is not None and first:
            moving_average.save(folder, average, self._strategy)
        torch.distributed.barrier()
        if first:
            ranks, stage = torch.distributed.get_world_size(), self._strategy.args.ds.zero_stage
            if missing := [rank for rank in range(ranks) if not _state_file(folder, rank).exists()]:
                raise self._not_shared(f"the files of rank(s) {_listed(missing)} are missing")
            checkpoints.seal(folder, self._objective, ranks, stage)
            if folder.name != tag:
                checkpoints.take_the_place_of_the_best(folder, tag)
            checkpoints.rotate(self._path, *self._kept)

    def _require_the_same_on_all_ranks(self) -> None:
        """Compare the checkpoint that each rank sees: one that sees none has loaded nothing, without a word."""
        seen = self._latest.read_text(encoding="utf-8") if self._latest.exists() else None
        found: list[str | None] = [None] * torch.distributed.get_world_size()
        torch.distributed.all_gather_object(found, seen)
        tag = next(filter(None, found), None)
        if others := [rank for rank, other in enumerate(found) if other != tag]:
            raise self._not_shared(f"rank(s) {_listed(others)} did not find {tag}")

    def _not_shared(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"--ckpt.path {self._path} is not shared by all nodes: {reason}; use a folder on storage that all nodes "
            "see"
        )

    @property
    def _latest(self) -> Path:
        return self._path / checkpoints.FOLDER / checkpoints.LATEST

    def _folder_of(self, tag: str) -> Path:
        return self._path / checkpoints.FOLDER / tag


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))


def _state_file(folder: Path, rank: int) -> Path:
    return folder / f"random_state_{rank}.pt"
