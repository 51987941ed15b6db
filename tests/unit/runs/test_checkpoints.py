"""Which checkpoints count, and what happens to those that do not."""

import os

import pytest

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.runs import checkpoints


def write(path, tag, *, finished=True, size=100):
    folder = path / checkpoints.FOLDER / f"{checkpoints.UNFINISHED}{tag}"
    (folder / "deep").mkdir(parents=True)
    (folder / "states.pt").write_bytes(b"x" * size)
    (folder / "deep" / "more.pt").write_bytes(b"y")
    if finished:
        checkpoints.finish(folder)
    return folder.with_name(tag)


def names(path):
    return {folder.name for folder in (path / "_actor").iterdir()}


def test_without_one_the_run_starts_at_the_beginning(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        begins = f"no complete checkpoint in {path}: starting from the beginning"
        assert checkpoints.recover(path) == (None, [begins])
        checkpoints.refuse_to_overwrite(path)
    write(tmp_path, "global_step2", finished=False)
    for name in ("latest", "zero_to_fp32.py"):  # DeepSpeed's
        (tmp_path / "_actor" / name).touch()
    assert checkpoints.recover(tmp_path)[0] is None
    assert not (tmp_path / "_actor").exists()


def test_the_newest_complete_one_is_chosen_by_its_step(tmp_path):
    for step in (10, 9):
        write(tmp_path, f"global_step{step}")
    write(tmp_path, "global_step12", finished=False)
    os.utime(tmp_path / "_actor" / "global_step10", (1, 1))  # the clock had jumped
    with pytest.raises(CheckpointError, match="which holds checkpoint global_step10 of an earlier"):
        checkpoints.refuse_to_overwrite(tmp_path)
    tag, messages = checkpoints.recover(tmp_path)
    assert tag == checkpoints.newest(tmp_path) == "global_step10"
    assert checkpoints.how_to_resume(tmp_path).endswith("to resume from global_step10")
    assert checkpoints.how_to_end(tmp_path).startswith(", or with --swap.training_steps 10, too, ")
    assert checkpoints.how_to_end(tmp_path / "nowhere") == ""
    assert messages[0].startswith("checkpoint unfinished_global_step12 is deleted")
    assert names(tmp_path) == {"global_step9", "global_step10", "latest"}
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step10"


def test_the_best_one_is_replaced_only_by_a_complete_one(tmp_path):
    write(tmp_path, "best_global_step2")
    write(tmp_path, "global_step4")
    write(tmp_path, "best_global_step4", finished=False)
    assert names(tmp_path) >= {"best_global_step2", "global_step4"}
    checkpoints.finish(tmp_path / "_actor" / "unfinished_best_global_step4")
    assert names(tmp_path) == {"best_global_step4", "global_step4", "latest"}
    assert checkpoints.recover(tmp_path)[0] == "best_global_step4"
    again = write(tmp_path, "best_global_step4", size=7)
    assert (again / "states.pt").stat().st_size == 7


def test_an_interrupted_deletion_leaves_what_the_next_start_deletes(tmp_path, monkeypatch):
    oldest = write(tmp_path, "global_step1")
    _ = write(tmp_path, "global_step2")

    def killed(folder, ignore_errors=False):
        if not ignore_errors:
            raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.discard(oldest)
    monkeypatch.undo()
    assert checkpoints.newest(tmp_path) == "global_step2"
    assert len(names(tmp_path)) == 3
    assert checkpoints.recover(tmp_path)[0] == "global_step2"
    assert len(names(tmp_path)) == 2


@pytest.mark.parametrize(
    ("keep", "max_bytes", "left"),
    [
        (2, 1e9, {"global_step3", "global_step4"}),
        (9, 1e9, {"global_step2", "global_step3", "global_step4"}),
        (9, 210, {"global_step3", "global_step4"}),  # 101 bytes each
        (0, 0, {"global_step4"}),  # the newest stays whatever the limits say
    ],
)
def test_rotation(tmp_path, keep, max_bytes, left):
    mine = tmp_path / "_actor" / "best_of_mine"
    for tag in ("best_global_step1", "global_step2", "global_step3", "global_step4"):
        write(tmp_path, tag)
    mine.mkdir()
    checkpoints.rotate(tmp_path, keep, max_bytes)
    assert names(tmp_path) == {"best_global_step1", "best_of_mine", "latest", *left}
