"""Locks on a run's folders, and a Ctrl-C that waits."""

import os
import signal
import subprocess
import sys
import time

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.process.ctrl_c import STOPPING, ctrl_c_after, stopped_like_ctrl_c
from openrlhf_swap.process.locks import LOCK, is_locked, locked

HOLD = """
import subprocess, sys, time
from pathlib import Path
from openrlhf_swap.process.locks import locked
with locked({"--swap.output_dir": Path(sys.argv[1]), "--ckpt.path": Path(sys.argv[2])}):
    child = subprocess.Popen(["sleep", "60"])  # like Ray's processes, it outlives a killed run
    print(child.pid, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("presses", "expected"), [(1, ["pressed", "the block went on"]), (2, ["pressed"])]
)
def test_ctrl_c_waits_for_the_end_of_a_block_and_the_second_does_not(
    in_foreground, presses, expected
):
    steps = []
    with pytest.raises(KeyboardInterrupt):
        with ctrl_c_after():
            for _ in range(presses):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.05)
                steps.append("pressed")
            steps.append("the block went on")
        steps.append("the code after it did not")
    assert steps == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def as_a_new_process():
    """Handle signals as a new process does: Ray leaves a handler, and `nohup` ignores SIGHUP."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in STOPPING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOPPING)
def test_other_signals_stop_a_command_in_one_line(number, as_a_new_process, capsys):
    """In the middle of imports, too; here where the shell has told the process to ignore Ctrl-C."""
    steps = []

    def command(_):
        with stopped_like_ctrl_c():
            with ctrl_c_after():
                os.kill(os.getpid(), number)
                time.sleep(0.05)
                steps.append("the block went on")
            steps.append("the code after it did not")

    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert run_command(command, []) == 128 + number
    finally:
        signal.signal(signal.SIGINT, before)
    assert steps == ["the block went on"]
    assert capsys.readouterr().err == f"error: stopped by {number.name}\n"
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_block_that_fails_after_ctrl_c_was_stopped_by_it(in_foreground):
    """A child process of the block gets the signal, too, and the block fails without it."""
    with pytest.raises(KeyboardInterrupt) as stopped, ctrl_c_after():
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.05)
        raise RuntimeError("a child has ended")
    assert isinstance(stopped.value.__cause__, RuntimeError)
    with pytest.raises(RuntimeError, match="by itself"), ctrl_c_after():
        raise RuntimeError("by itself")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_run_is_refused_until_the_first_has_ended_or_was_killed(tmp_path):
    flags = {"--swap.output_dir": tmp_path / "run", "--ckpt.path": tmp_path / "run" / "checkpoints"}
    command = [sys.executable, "-c", HOLD, *map(str, flags.values())]
    first = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(first.stdout.readline())
    try:
        for flag, folder in flags.items():
            refused = f"^{flag} is {folder}, where another run is under way .* use another place$"
            with pytest.raises(ConfigError, match=refused), locked({flag: folder}):
                pass
        with locked({"--swap.output_dir": tmp_path / "other"}):
            pass
        assert is_locked(tmp_path / "run")
        assert not is_locked(tmp_path)
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert not is_locked(tmp_path / "run")
        with locked(flags):
            pass
    finally:
        subprocess.run(["kill", str(child)], check=True)
        first.kill()


def test_folders_that_nothing_was_written_to_are_removed_again(tmp_path):
    output = tmp_path / "new" / "run"
    flags = {"--swap.output_dir": output, "--ckpt.path": output / "checkpoints"}
    with locked(flags):
        assert (output / LOCK).exists()
    assert list(tmp_path.iterdir()) == []
    with locked(flags):
        (output / "train.log").touch()
    assert (output / "train.log").exists()
    own = tmp_path / "empty"
    own.mkdir()
    # One folder under two flags is locked once; the user's own stays.
    with locked({"--swap.output_dir": own, "--ckpt.path": own / "x" / ".."}):
        pass
    assert own.exists()
