"""Checkpoints of several ranks, of which this process is one: the others are their files."""

import os
import pickle
from types import SimpleNamespace

import pytest
import torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.integration.policy import rank_checkpoints
from openrlhf_swap.integration.policy.safe_loading import forbid_pickles
from openrlhf_swap.runs import checkpoints

TAG = "global_step2"


@pytest.fixture
def first_rank(tmp_path, monkeypatch):
    """The checkpoints of rank 0 of four."""
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(rank_checkpoints, "forbid_pickles", lambda: None)
    ckpt = SimpleNamespace(path=str(tmp_path), max_num=3, max_mem=1000, load_enable=True)
    strategy = SimpleNamespace(args=SimpleNamespace(ckpt=ckpt), get_rank=lambda: 0)
    return rank_checkpoints.PolicyCheckpoints(strategy)


def save(first_rank, path, others):
    with first_rank.writing(TAG, with_model=True, with_export=False) as name:
        folder = path / "_actor" / name
        folder.mkdir(parents=True, exist_ok=True)
        for rank in others:
            (folder / f"random_state_{rank}.pt").write_bytes(b"x")


def test_a_checkpoint_is_finished_with_the_files_of_all_nodes(tmp_path, first_rank):
    missing = r"is not shared by all nodes: the files of rank\(s\) 2, 3 are missing; use a folder"
    with pytest.raises(CheckpointError, match=missing):
        save(first_rank, tmp_path, others=(1,))
    assert checkpoints.newest(tmp_path) is None
    save(first_rank, tmp_path, others=(1, 2, 3))
    assert checkpoints.newest(tmp_path) == TAG


def test_a_checkpoint_whose_files_are_gone_is_one_line(tmp_path, first_rank):
    save(first_rank, tmp_path, others=(1, 2, 3))
    (tmp_path / "_actor" / TAG / "random_state_0.pt").unlink()
    one_line = pytest.raises(CheckpointError, match="delete its folder to use the one before it")
    with one_line, first_rank.explained_loading():
        first_rank.load_random_state()


class Written:
    """What a checkpoint holds as the call of a function."""

    def __init__(self, *call):
        self._call = call

    def __reduce__(self):
        return self._call


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads such a checkpoint as DeepSpeed does, which asks torch to allow everything."""
    monkeypatch.setenv("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "1")  # so that it is removed at the end
    forbid_pickles()

    def load(*call):
        torch.save({"zero_stage": Written(*call)}, tmp_path / "states.pt")
        return torch.load(tmp_path / "states.pt", weights_only=False)["zero_stage"]

    return load


def test_a_checkpoint_is_read_as_data_alone(tmp_path, load):
    """Python writes an enumeration's member as getattr(class, name) up to 3.11.3, and as
    class(value) later.
    """
    assert load(getattr, (ZeroStageEnum, "gradients")) is ZeroStageEnum.gradients
    assert load(ZeroStageEnum, (2,)) is ZeroStageEnum.gradients
    with pytest.raises(pickle.UnpicklingError, match="mkdir"):
        load(os.mkdir, (str(tmp_path / "was_run"),))
    assert not (tmp_path / "was_run").exists()
    with pytest.raises(pickle.UnpicklingError, match="__init__ of"):
        load(getattr, (LossScaler, "__init__"))
