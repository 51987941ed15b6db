"""Which checkpoints count, and what happens to those that do not."""

import json
import os
from types import SimpleNamespace

import pytest

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.runs import checkpoints


def write(path, tag, *, finished=True, size=100):
    folder = path / checkpoints.FOLDER / f"{checkpoints.UNFINISHED}{tag}"
    (folder / "deep").mkdir(parents=True)
    (folder / "states.pt").write_bytes(b"x" * size)
    (folder / "deep" / "more.pt").write_bytes(b"y")
    if finished:
        checkpoints.write_checksums(folder, rank=0, ranks=1)
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


def test_the_remedy_names_the_flag_only_where_it_is_missing(tmp_path):
    def remedy(load_enable):
        given = SimpleNamespace(path=str(tmp_path), load_enable=load_enable)
        return checkpoints.how_to_resume(given)

    assert remedy(True) == remedy(False) == "no checkpoint was written yet"
    write(tmp_path, "global_step10")
    assert remedy(True) == "start the same command again to resume from global_step10"
    assert remedy(False) == "start again with --ckpt.load_enable to resume from global_step10"


def test_the_newest_complete_one_is_chosen_by_its_step(tmp_path):
    for step in (10, 9):
        write(tmp_path, f"global_step{step}")
    write(tmp_path, "global_step12", finished=False)
    os.utime(tmp_path / "_actor" / "global_step10", (1, 1))  # the clock had jumped
    with pytest.raises(CheckpointError, match="which holds checkpoint global_step10 of an earlier"):
        checkpoints.refuse_to_overwrite(tmp_path)
    tag, messages = checkpoints.recover(tmp_path)
    assert tag == checkpoints.newest(tmp_path) == "global_step10"
    assert checkpoints.how_to_end(tmp_path).startswith(", or add --swap.training_steps 10 to ")
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
        (9, 400, {"global_step3", "global_step4"}),  # about 150 bytes each
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


def test_a_checkpoint_is_checked_byte_by_byte_and_the_older_one_offered(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints, "PART", 30)  # the file has several parts
    write(tmp_path, "global_step1")
    damaged = write(tmp_path, "global_step2")
    assert checkpoints.recover(tmp_path)[0] == "global_step2"
    (damaged / "states.pt").write_bytes(b"x" * 45 + b"z" + b"x" * 54)
    changed = r"^checkpoint global_step2 in .* \(states\.pt has other bytes than were written\)"
    with pytest.raises(
        CheckpointError, match=rf"{changed}; delete .*step2 to resume from .*step1$"
    ):
        checkpoints.recover(tmp_path)
    (damaged / "states.pt").unlink()
    with pytest.raises(CheckpointError, match=r"\(states\.pt is missing\)"):
        checkpoints.recover(tmp_path)
    (damaged / "checksums_0.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"\(checksums_0\.json cannot be read: "):
        checkpoints.recover(tmp_path)
    checkpoints.discard(damaged)
    assert checkpoints.recover(tmp_path)[0] == "global_step1"


def test_each_rank_writes_the_checksums_of_its_share(tmp_path):
    tag = write(tmp_path, "global_step1")
    (tag / "checksums_0.json").unlink()
    for rank in range(3):
        checkpoints.write_checksums(tag, rank, ranks=3)
    sums = [json.loads((tag / f"checksums_{rank}.json").read_text()) for rank in range(3)]
    assert [list(share) for share in sums] == [["deep/more.pt"], ["states.pt"], []]
    assert checkpoints.recover(tmp_path)[0] == "global_step1"


def test_what_is_no_checkpoint_by_its_content_is_not_chosen(tmp_path):
    write(tmp_path, "global_step1")
    actor = tmp_path / "_actor"
    (actor / "global_step99999999999").mkdir()
    (actor / "global_step99999999998").write_text("a file")
    (actor / "unfinished_file").write_text("")
    assert checkpoints.recover(tmp_path)[0] == "global_step1"
    (actor / "latest").unlink()
    (actor / "latest").mkdir()
    with pytest.raises(CheckpointError, match=r"latest is a folder, .*; move it away$"):
        checkpoints.recover(tmp_path)


def test_of_a_checkpoint_on_another_disk_the_link_is_deleted(tmp_path):
    linked = write(tmp_path, "global_step1")
    elsewhere = linked.rename(tmp_path / "elsewhere")
    linked.symlink_to(elsewhere)
    write(tmp_path, "global_step2")
    checkpoints.rotate(tmp_path, keep=1, max_bytes=1e9)
    assert names(tmp_path) == {"global_step2", "latest"}
    assert (elsewhere / "states.pt").exists()


def test_an_empty_folder_is_deleted_and_one_with_other_files_is_named(tmp_path):
    actor = tmp_path / "_actor"
    (actor / "global_step2").mkdir(parents=True)
    begins = f"no complete checkpoint in {tmp_path}: starting from the beginning"
    deleted = "checkpoint global_step2 is deleted: it was not written completely"
    assert checkpoints.recover(tmp_path) == (None, [deleted, begins])
    assert not actor.exists()
    (actor / "notes").mkdir(parents=True)
    with pytest.raises(CheckpointError, match=r"_actor holds notes but no checkpoint of a run; "):
        checkpoints.recover(tmp_path)
    assert (actor / "notes").is_dir()
