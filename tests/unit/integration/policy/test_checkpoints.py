"""Checkpoints of several ranks, of which this process is one: the others are what the collectives
say.
"""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.integration.policy import checkpoints as module
from openrlhf_swap.runs import checkpoints


@pytest.fixture
def ranks(monkeypatch):
    """The other ranks: the files that they write before a barrier, and the tags that they gather."""
    others = SimpleNamespace(writing=lambda: None, tags=[])

    def gather(found, own):
        found[:] = [own, *others.tags]

    monkeypatch.setattr(torch.distributed, "barrier", lambda: others.writing())
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    monkeypatch.setattr(module, "forbid_pickles", lambda: None)
    return others


def first_rank(path, load=False):
    args = SimpleNamespace(
        ckpt=SimpleNamespace(path=str(path), max_num=3, max_mem=1000, load_enable=load),
        swap=SimpleNamespace(objective="swap"),
        ds=SimpleNamespace(zero_stage=2),
    )
    return module.PolicyCheckpoints(
        SimpleNamespace(args=args, is_rank_0=lambda: True, get_rank=lambda: 0)
    )


def save(path, tag="global_step2"):
    with first_rank(path).writing(tag, None, with_model=True, with_export=False) as name:
        (path / "_actor" / name).mkdir(parents=True)


def barriers(path, numbers):
    """The first barrier is before anything is written."""
    waits = iter([lambda: None, lambda: states_of(path, numbers)])
    return lambda: next(waits)()


def states_of(path, numbers, tag="global_step2"):
    for rank in numbers:
        (path / "_actor" / f"unfinished_{tag}" / f"random_state_{rank}.pt").write_bytes(b"x")


def test_a_checkpoint_of_all_ranks_is_finished(tmp_path, ranks):
    ranks.writing = barriers(tmp_path, (1, 2, 3))
    save(tmp_path)
    assert checkpoints.newest(tmp_path) == "global_step2"


def test_a_checkpoint_is_not_finished_without_the_files_of_other_nodes(tmp_path, ranks):
    ranks.writing = barriers(tmp_path, (1,))
    with pytest.raises(CheckpointError) as refused:
        save(tmp_path)
    assert str(refused.value) == (
        f"--ckpt.path {tmp_path} is not shared by all nodes: the files of rank(s) 2, 3 are missing; use a folder on "
        "storage that all nodes see"
    )
    assert checkpoints.newest(tmp_path) is None


@pytest.mark.parametrize(
    ("own", "others", "missing"),
    [
        ("global_step2", ["global_step2", None, None], "rank(s) 2, 3 did not find global_step2"),
        (None, ["global_step2"] * 3, "rank(s) 0 did not find global_step2"),
        (
            "global_step2",
            ["global_step2", "global_step1", "global_step1"],
            "rank(s) 2, 3 did not find global_step2",
        ),
        ("global_step2", ["global_step2"] * 3, None),
        (None, [None] * 3, None),  # a start from the beginning
    ],
)
def test_all_ranks_resume_or_none(tmp_path, ranks, own, others, missing):
    if own:
        (tmp_path / "_actor").mkdir()
        (tmp_path / "_actor" / "latest").write_text(own)
    ranks.tags = others
    fails = pytest.raises(
        CheckpointError, match=rf"is not shared by all nodes.*{re.escape(missing or '')}"
    )
    with fails if missing else nullcontext(), first_rank(tmp_path, load=True).explained_loading():
        pass


def test_a_run_that_loads_nothing_does_not_ask_the_other_ranks(tmp_path, ranks):
    ranks.tags = ["global_step2"] * 3  # left by something else
    with first_rank(tmp_path).explained_loading():
        pass


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("PytorchStreamReader failed finding central directory", CheckpointError),
        ("CUDA out of memory", RuntimeError),
    ],
)
def test_a_broken_file_is_named_with_the_remedy_and_nothing_else(tmp_path, ranks, error, kind):
    with pytest.raises(kind, match=error), first_rank(tmp_path, load=True).explained_loading():
        raise RuntimeError(error)
