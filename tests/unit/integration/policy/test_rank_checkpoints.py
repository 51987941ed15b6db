"""Checkpoints of several ranks, of which this process is one: the others are their files."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.integration.policy import rank_checkpoints
from openrlhf_swap.integration.policy.rank_checkpoints import load_random_state, save_random_state
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
        folder.mkdir(parents=True)
        for rank in others:
            (folder / f"random_state_{rank}.pt").write_bytes(b"x")


def test_a_checkpoint_of_all_ranks_is_finished(tmp_path, first_rank):
    save(first_rank, tmp_path, others=(1, 2, 3))
    assert checkpoints.newest(tmp_path) == TAG


def test_a_checkpoint_is_not_finished_without_the_files_of_other_nodes(tmp_path, first_rank):
    missing = r"is not shared by all nodes: the files of rank\(s\) 2, 3 are missing; use a folder"
    with pytest.raises(CheckpointError, match=missing):
        save(first_rank, tmp_path, others=(1,))
    assert checkpoints.newest(tmp_path) is None


def test_what_cannot_be_written_is_one_line_with_a_remedy(tmp_path, first_rank):
    remedy = "free some space, or name another disk: no checkpoint was written yet"
    with (
        pytest.raises(CheckpointError, match=f"cannot be written to .*no space.*{remedy}"),
        first_rank.writing(TAG, with_model=True, with_export=False),
    ):
        raise OSError("no space")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("PytorchStreamReader failed finding central directory", CheckpointError),
        ("CUDA out of memory", RuntimeError),
    ],
)
def test_a_broken_file_is_named_with_the_remedy_and_nothing_else(first_rank, error, kind):
    with pytest.raises(kind, match=error) as raised, first_rank.explained_loading():
        raise RuntimeError(error)
    assert raised.type is kind


def test_random_numbers_go_on_where_they_were(tmp_path):
    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    save_random_state(tmp_path / "state.pt")
    expected = draw()
    assert draw() != expected
    load_random_state(tmp_path / "state.pt")
    assert draw() == expected
