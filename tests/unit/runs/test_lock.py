"""Two runs in one folder: the second is refused; a killed one is in nobody's way."""

import errno
import fcntl
import os
import signal
import subprocess
import sys

import pytest

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs.process import locked

HOLD = """
import subprocess, sys, time
from pathlib import Path
from openrlhf_swap.runs.process import locked
with locked({"--swap.output_dir": Path(sys.argv[1]), "--ckpt.path": Path(sys.argv[2])}):
    child = subprocess.Popen(["sleep", "60"])  # like Ray's processes, it outlives a killed run
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_a_second_run_is_refused_until_the_first_has_ended_or_was_killed(tmp_path):
    output, checkpoints = tmp_path / "run", tmp_path / "run" / "checkpoints"
    command = [sys.executable, "-c", HOLD, str(output), str(checkpoints)]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(first.stdout.readline())
    try:
        for flag, folder in (("--swap.output_dir", output), ("--ckpt.path", checkpoints)):
            message = f"{flag} is {folder}, where another run is under way (run.lock); wait until it has ended"
            with pytest.raises(ConfigError) as error, locked({flag: folder}):
                pass
            assert str(error.value).startswith(message) and "\n" not in str(error.value)
        with locked({"--swap.output_dir": tmp_path / "other"}):
            pass
        first.send_signal(signal.SIGKILL)
        first.wait()
        with locked({"--swap.output_dir": output, "--ckpt.path": checkpoints}):
            pass
    finally:
        subprocess.run(["kill", str(child)], check=True)
        first.kill()


def test_folders_that_nothing_was_written_to_are_removed_again(tmp_path):
    flags = {"--swap.output_dir": tmp_path / "new" / "run", "--ckpt.path": tmp_path / "new" / "run" / "checkpoints"}
    with locked(flags):
        assert (tmp_path / "new" / "run" / "run.lock").exists()
    assert list(tmp_path.iterdir()) == []
    with locked(flags):
        (tmp_path / "new" / "run" / "train.log").touch()
    assert (tmp_path / "new" / "run" / "train.log").exists()
    (tmp_path / "empty").mkdir()
    with locked({"--swap.output_dir": tmp_path / "empty"}):
        pass
    assert (tmp_path / "empty").exists()  # the user's own


def test_one_folder_under_two_flags_is_locked_once(tmp_path):
    with locked({"--swap.output_dir": tmp_path, "--ckpt.path": tmp_path / "." / "x" / ".."}):
        pass


@pytest.fixture
def flock_fails(monkeypatch):
    """Makes the kernel refuse locks with an error number."""

    def fail(number):
        def flock(*_):
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(fcntl, "flock", flock)

    return fail


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_told_and_used(tmp_path, flock_fails, capsys, number):
    flock_fails(number)
    with locked({"--output": tmp_path}):
        told = capsys.readouterr().out
    assert told == f"[swap] the file system of {tmp_path} has no locks; start no second run there\n"
    with locked({"--output": tmp_path}):  # nor is there a mark that a killed run would leave to the next
        pass


def test_another_error_of_the_lock_is_one(tmp_path, flock_fails):
    flock_fails(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)), locked({"--output": tmp_path}):
        pytest.fail("the folder is not locked")
