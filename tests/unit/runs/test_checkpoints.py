"""Which checkpoints count, and what happens to those that do not."""

import json
import os
import subprocess

import pytest

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.runs import checkpoints

UNREADABLE = "its complete.json cannot be read"
TORN = (b"", b"{", b"[]", b"null", b"\0" * 64, b'{"files": []}', b'{"files": {"states.pt": null}}')
TORN += (b'{"number": 1, "files": {"states.pt": {"bytes": 100}}}', b"[" * 100_000, b"\xff{")


def flip_a_bit(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def write(path, tag, *, sealed=True, size=100):
    folder = path / checkpoints.FOLDER / tag
    checkpoints.begin(folder)
    (folder / "deep").mkdir()
    (folder / "states.pt").write_bytes(b"x" * size)
    (folder / "deep" / "more.pt").write_bytes(b"y")
    if sealed:
        checkpoints.seal(folder)
    return folder


def test_no_checkpoint(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        begins = f"no complete checkpoint in {path}: starting from the beginning"
        assert checkpoints.recover(path) == (None, [begins])


def test_the_newest_complete_one_is_chosen_by_order_not_by_name(tmp_path):
    write(tmp_path, "global_step9")
    write(tmp_path, "global_step10")
    assert checkpoints.recover(tmp_path)[0] == checkpoints.newest(tmp_path) == "global_step10"
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step10"


def test_one_that_was_never_finished_is_deleted(tmp_path):
    write(tmp_path, "global_step2")
    half = write(tmp_path, "global_step4", sealed=False)
    (tmp_path / "_actor" / "latest").write_text(
        "global_step4"
    )  # the last thing DeepSpeed wrote before the process was killed
    tag, messages = checkpoints.recover(tmp_path)
    assert tag == "global_step2"
    assert not half.exists()
    assert messages[0] == ("checkpoint global_step4 is ignored and deleted: it was not written completely")
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step2"


def test_one_that_something_else_wrote_is_neither_used_nor_touched(tmp_path):
    write(tmp_path, "global_step2", sealed=False)
    foreign = write(tmp_path, "global_step4", sealed=False)
    (foreign / "incomplete").unlink()
    with pytest.raises(
        CheckpointError, match=r"global_step4 without a complete\.json: it was not written by openrlhf"
    ):
        checkpoints.recover(tmp_path)
    assert {folder.name for folder in (tmp_path / "_actor").iterdir()} == {"global_step2", "global_step4"}
    assert (foreign / "states.pt").exists()


def test_the_seal_of_an_earlier_run_does_not_cover_what_is_written_over_it(tmp_path):
    folder = write(tmp_path, "global_step2")
    checkpoints.begin(folder)
    assert checkpoints.newest(tmp_path) is None
    checkpoints.seal(folder)
    assert checkpoints.newest(tmp_path) == "global_step2"


def test_the_best_one_is_replaced_only_by_a_complete_one(tmp_path):
    write(tmp_path, "best_global_step2")
    write(tmp_path, "global_step4")
    better = write(tmp_path, "new_best_global_step4")
    checkpoints.take_the_place_of_the_best(better, "best_global_step4")
    names = {folder.name for folder in (tmp_path / "_actor").iterdir()}
    assert names == {"best_global_step4", "global_step4", "latest"}
    assert checkpoints.recover(tmp_path)[0] == "best_global_step4"


def test_an_interrupted_deletion_leaves_what_the_next_start_deletes(tmp_path, monkeypatch):
    write(tmp_path, "global_step2")
    oldest = write(tmp_path, "global_step1")

    def killed(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.shutil, "rmtree", killed)  # the folder `deep`
    with pytest.raises(KeyboardInterrupt):
        checkpoints.discard(oldest)
    monkeypatch.undo()
    assert (oldest / "deep" / "more.pt").exists()
    assert checkpoints.newest(tmp_path) == "global_step2"
    tag, messages = checkpoints.recover(tmp_path)
    assert messages[0] == "checkpoint global_step1 is ignored and deleted: it was not written completely"
    assert tag == "global_step2" and not oldest.exists()


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: os.truncate(folder / "states.pt", 7), "states.pt has 7 bytes instead of 100"),
        (lambda folder: (folder / "deep" / "more.pt").unlink(), "deep/more.pt is missing"),
        *((lambda folder, seal=seal: (folder / "complete.json").write_bytes(seal), UNREADABLE) for seal in TORN),
    ],
)
def test_a_damaged_one_is_kept_apart(tmp_path, harm, reason):
    """With one line, and without deleting what an earlier start set aside under the same name."""
    earlier = tmp_path / "damaged" / "global_step2"
    earlier.mkdir(parents=True)
    write(tmp_path, "global_step2")
    harm(write(tmp_path, "global_step4"))
    assert checkpoints.newest(tmp_path) == "global_step2"
    tag, messages = checkpoints.recover(tmp_path)
    assert tag == "global_step2"
    moved = tmp_path / "damaged" / "global_step4"
    assert messages[0].startswith(f"checkpoint global_step4 is ignored and moved to {moved}: {reason}")
    assert [len(message.splitlines()) for message in messages] == [1, 1]
    assert moved.is_dir() and earlier.is_dir()


def test_with_none_left_the_run_starts_at_the_beginning(tmp_path):
    write(tmp_path, "global_step2", sealed=False)
    (tmp_path / "_actor" / "latest").write_text("global_step2")
    (tmp_path / "_actor" / "zero_to_fp32.py").touch()  # DeepSpeed's
    assert checkpoints.recover(tmp_path)[0] is None
    assert not (tmp_path / "_actor").exists()


@pytest.mark.parametrize(
    ("keep", "max_bytes", "left"),
    [
        (2, 1e9, ["best_global_step1", "global_step3", "global_step4"]),
        (9, 1e9, ["best_global_step1", "global_step2", "global_step3", "global_step4"]),
        (9, 210, ["best_global_step1", "global_step3", "global_step4"]),  # 101 bytes each
        (0, 0, ["best_global_step1", "global_step4"]),  # the newest stays whatever the limits say
    ],
)
def test_rotation(tmp_path, keep, max_bytes, left):
    for tag in ("best_global_step1", "global_step2", "global_step3", "global_step4"):
        write(tmp_path, tag)
    checkpoints.rotate(tmp_path, keep, max_bytes)
    assert sorted(folder.name for folder in (tmp_path / "_actor").iterdir()) == left


def test_a_seal_appears_at_once(tmp_path, monkeypatch):
    """A process killed while it writes the seal leaves none."""
    folder = write(tmp_path, "global_step2", sealed=False)

    def killed(_source, _target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoints.seal(folder)
    monkeypatch.undo()
    assert checkpoints.newest(tmp_path) is None
    checkpoints.seal(folder)
    assert checkpoints.newest(tmp_path) == "global_step2"


def test_a_flipped_bit_is_found_before_anything_is_loaded(tmp_path):
    write(tmp_path, "global_step2")
    for step in (4, 6):
        flip_a_bit(write(tmp_path, f"global_step{step}") / "states.pt")
    tag, messages = checkpoints.recover(tmp_path)
    assert tag == checkpoints.newest(tmp_path) == "global_step2"
    for step, message in zip((6, 4), messages, strict=False):
        assert message == (
            f"checkpoint global_step{step} is ignored and moved to {tmp_path}/damaged/global_step{step}: states.pt "
            "has changed since it was written (its sha256 is another)"
        )


def set_clock_back(checkpoint):
    """As an older seal: unpacked by tar, or written after the clock had jumped."""
    os.utime(checkpoint / "complete.json", (1, 1))


def test_the_clock_decides_neither_what_is_newest_nor_what_is_deleted(tmp_path):
    for step in (2, 4, 6):
        newest = write(tmp_path, f"global_step{step}")
    set_clock_back(newest)
    assert checkpoints.newest(tmp_path) == "global_step6"
    checkpoints.rotate(tmp_path, keep=2, max_bytes=1e9)
    assert sorted(folder.name for folder in (tmp_path / "_actor").iterdir()) == ["global_step4", "global_step6"]
    assert checkpoints.recover(tmp_path)[0] == "global_step6"


def test_the_seal_has_the_hashes_that_sha256sum_prints(tmp_path):
    folder = write(tmp_path, "global_step2")
    files = json.loads((folder / "complete.json").read_text())["files"]
    for name, entry in files.items():
        printed = subprocess.run(["sha256sum", folder / name], capture_output=True, text=True, check=True).stdout
        assert printed.split()[0] == entry["sha256"]
    assert set(files) == {"states.pt", "deep/more.pt"}


def test_nothing_of_the_users_is_deleted(tmp_path):
    """Whatever it is called, wherever it lies."""
    kept = [tmp_path / "deleted" / "thesis.tex", tmp_path / "_actor" / "best_of_mine" / "notes.txt"]
    kept += [tmp_path / "damaged" / "global_step4" / "a"]
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("mine")
    write(tmp_path, "global_step1")
    write(tmp_path, "global_step2")
    checkpoints.rotate(tmp_path, keep=1, max_bytes=1e9)
    checkpoints.take_the_place_of_the_best(write(tmp_path, "new_best_global_step4"), "best_global_step4")
    with pytest.raises(CheckpointError, match="checkpoint best_of_mine without a complete"):
        checkpoints.recover(tmp_path)
    with pytest.raises(CheckpointError, match="holds files that openrlhf_swap did not write; move them away"):
        checkpoints.begin(tmp_path / "_actor" / "best_of_mine")
    (tmp_path / "_actor" / "best_of_mine").rename(tmp_path / "moved")
    note = tmp_path / "_actor" / "note.txt"
    note.write_text("mine")
    kept[1:2] = [tmp_path / "moved" / "notes.txt", note]
    flip_a_bit(write(tmp_path, "global_step4") / "states.pt")
    assert checkpoints.recover(tmp_path)[0] == "best_global_step4"
    checkpoints.discard(tmp_path / "_actor" / "best_global_step4")
    checkpoints.discard(tmp_path / "_actor" / "global_step2")
    with pytest.raises(CheckpointError, match=r"holds _actor/note\.txt, which is not ours; move it"):
        checkpoints.recover(tmp_path)
    assert [file.read_text() for file in kept] == ["mine"] * 4
