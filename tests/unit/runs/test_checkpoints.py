"""Which checkpoints count, and what happens to those that do not."""

import os
import subprocess
import sys
import time

import pytest

from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.runs import checkpoints


def write(path, tag, *, sealed=True, size=100):
    folder = path / checkpoints.FOLDER / tag
    checkpoints.begin(folder)
    (folder / "deep").mkdir()
    (folder / "states.pt").write_bytes(b"x" * size)
    (folder / "deep" / "more.pt").write_bytes(b"y")
    if sealed:
        checkpoints.seal(folder, "swap")
        time.sleep(0.01)  # the seals' times determine the order
    return folder


def test_no_checkpoint(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        recovery = checkpoints.recover(path)
        assert recovery.tag is None
        assert recovery.messages == [f"no complete checkpoint in {path}: starting from the beginning"]


def test_the_newest_complete_one_is_chosen_by_time_not_by_name(tmp_path):
    write(tmp_path, "global_step9")
    write(tmp_path, "global_step10")
    assert checkpoints.recover(tmp_path).tag == checkpoints.newest(tmp_path) == "global_step10"
    assert (tmp_path / "_actor" / "latest").read_text() == "global_step10"


def test_one_that_was_never_finished_is_deleted(tmp_path):
    write(tmp_path, "global_step2")
    half = write(tmp_path, "global_step4", sealed=False)
    (tmp_path / "_actor" / "latest").write_text(
        "global_step4"
    )  # the last thing DeepSpeed wrote before the process was killed
    recovery = checkpoints.recover(tmp_path)
    assert recovery.tag == "global_step2"
    assert not half.exists()
    assert recovery.messages[0] == ("checkpoint global_step4 is ignored and deleted: it was not written completely")
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
    checkpoints.seal(folder, "swap")
    assert checkpoints.newest(tmp_path) == "global_step2"


def test_the_best_one_is_replaced_only_by_a_complete_one(tmp_path):
    write(tmp_path, "best_global_step2")
    write(tmp_path, "global_step4")
    better = write(tmp_path, "new_best_global_step4")
    checkpoints.take_the_place_of_the_best(better, "best_global_step4")
    names = {folder.name for folder in (tmp_path / "_actor").iterdir()}
    assert names == {"best_global_step4", "global_step4", "latest"}
    assert checkpoints.recover(tmp_path).tag == "best_global_step4"


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_interrupted_deletion_leaves_no_partial_checkpoint(tmp_path, monkeypatch, interrupted):
    write(tmp_path, "global_step2")
    oldest = write(tmp_path, "global_step1")
    if interrupted:
        monkeypatch.setattr(checkpoints.shutil, "rmtree", lambda *_args, **_options: None)
    checkpoints.discard(oldest)
    assert [folder.name for folder in (tmp_path / "_actor").iterdir()] == ["global_step2"]
    assert (tmp_path / "deleted").exists() == interrupted
    monkeypatch.undo()
    assert checkpoints.recover(tmp_path).tag == "global_step2"


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda folder: os.truncate(folder / "states.pt", 7), "states.pt has 7 bytes instead of 100"),
        (lambda folder: (folder / "deep" / "more.pt").unlink(), "deep/more.pt is missing"),
        (lambda folder: (folder / "complete.json").write_text("{"), "its complete.json cannot be read"),
    ],
)
def test_a_damaged_one_is_kept_apart(tmp_path, harm, reason):
    write(tmp_path, "global_step2")
    harm(write(tmp_path, "global_step4"))
    assert checkpoints.newest(tmp_path) == "global_step2"
    recovery = checkpoints.recover(tmp_path)
    assert recovery.tag == "global_step2"
    moved = tmp_path / "damaged" / "global_step4"
    assert recovery.messages[0] == f"checkpoint global_step4 is ignored and moved to {moved}: {reason}"
    assert moved.is_dir()


def test_with_none_left_the_run_starts_at_the_beginning(tmp_path):
    write(tmp_path, "global_step2", sealed=False)
    (tmp_path / "_actor" / "latest").write_text("global_step2")
    assert checkpoints.recover(tmp_path).tag is None
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
        checkpoints.seal(folder, "swap")
    monkeypatch.undo()
    assert checkpoints.newest(tmp_path) is None
    checkpoints.seal(folder, "swap")
    assert checkpoints.newest(tmp_path) == "global_step2"


def test_a_checkpoint_that_wants_to_run_code_is_refused(tmp_path):
    """Even if the caller asks torch to allow it, as DeepSpeed does."""
    script = """
import os, pickle, sys, torch
from openrlhf_swap.integration.policy import random_state

class Evil:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1] + "/was_run",)

path = sys.argv[1] + "/states.pt"
torch.save({"module": Evil()}, path)
random_state.forbid_pickles()
try:
    torch.load(path, weights_only=False)
except pickle.UnpicklingError as error:
    print("refused", "mkdir" in str(error))
"""
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "refused True"
    assert not (tmp_path / "was_run").exists()


def test_members_of_enumerations_are_read_as_every_python_writes_them(tmp_path):
    """As getattr(class, name) in 3.11.0 to 3.11.3, as class(value) later; of anything else getattr is refused."""
    script = """
import pickle, sys, torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from openrlhf_swap.integration.policy import random_state

class Written:
    def __init__(self, *how): self.how = how
    def __reduce__(self): return self.how

path = sys.argv[1] + "/states.pt"
random_state.forbid_pickles()
for how in ((getattr, (ZeroStageEnum, "gradients")), (ZeroStageEnum, (2,)), (getattr, (LossScaler, "__init__"))):
    torch.save({"zero_stage": Written(*how)}, path)
    try:
        print(torch.load(path, weights_only=False)["zero_stage"] is ZeroStageEnum.gradients)
    except pickle.UnpicklingError as error:
        print("refused", "__init__ of" in str(error))
"""
    result = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-3:] == ["True", "True", "refused True"]
