"""The process of a run: its console, in a process of its own, because it redirects both outputs;
and its folders.
"""

import errno
import fcntl
import os
import pty
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.paths import ROOT

from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.runs.process import _own, ctrl_c_after, locked, quiet_console

PROGRAM = """
import atexit, os, subprocess, sys, time
from pathlib import Path
from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.runs.process import quiet_console

class OfRay(Exception):
    def __init__(self, cause):
        self.cause = cause

def command(argv):
    with quiet_console(Path("out/train.log"), "[swap]", "--verbose"):
        print("a library's line")
        os.write(2, b"(SwapTrainer pid=12, ip=10.0.0.2) [swap] step 1\\n(SwapTrainer pid=12) its noise\\n")
        subprocess.run(["echo", "[swap] from a child"])
        sys.stderr.write("\\r[swap] bar:  0%|   | 0/2\\r[swap] bar: 50%|#  | 1/2 [00:01<00:01]")
        time.sleep(0.5)
        sys.stderr.write("\\r           \\r")
        print("[swap] last line")
        if argv == ["killed"]:
            os.kill(os.getpid(), 9)
        if argv:
            raise {"ours": ConfigError("--x is 1; use 2"), "other": OfRay(KeyError("no such"))}[argv[0]]
    print("a table")
    atexit.register(lambda: os.write(2, b"[swap] complaint of a library at the end"))

sys.exit(run_command(command))
"""
FIRST = "[swap] all other output goes to out/train.log; --verbose shows it here"
LINES = [FIRST, "[swap] step 1", "[swap] from a child", "[swap] last line"]


def run(folder, *argv, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *argv], cwd=folder, env=environment, **options
    )


def run_quietly(folder, *argv):
    return run(folder, *argv, capture_output=True, text=True, check=False)


@pytest.fixture
def another_thread():
    """Like the one that follows the log: the kernel may give it a signal that is meant for the
    process.
    """
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@pytest.mark.parametrize(
    ("presses", "expected"), [(1, ["pressed", "the block went on"]), (2, ["pressed"])]
)
def test_ctrl_c_waits_for_the_end_of_a_block_and_the_second_does_not(
    in_foreground, another_thread, presses, expected
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


def test_ctrl_c_stays_ignored_where_it_was(another_thread):
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # as in what a shell runs in the background
    try:
        with ctrl_c_after():
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_own_lines_are_shown_and_all_lines_are_logged(tmp_path):
    result = run_quietly(tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [*LINES, "a table"]
    log = (tmp_path / "out" / "train.log").read_text()
    assert all(
        line in log
        for line in [*LINES, "a library's line", "its noise", "complaint of a library at the end"]
    )
    run_quietly(tmp_path)  # a resumed run appends
    assert (tmp_path / "out" / "train.log").read_text() == 2 * log


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("ours", "error: --x is 1; use 2\n"),
        ("other", "error: KeyError: 'no such'; the traceback is at the end of out/train.log\n"),
    ],
)
def test_an_error_is_one_line(tmp_path, what, error):
    result = run_quietly(tmp_path, what)
    assert (result.returncode, result.stderr, result.stdout.splitlines()) == (2, error, LINES)
    log = (tmp_path / "out" / "train.log").read_text()
    assert ("Traceback" in log and "OfRay" in log) == (what == "other")


def test_the_log_of_a_killed_process_is_whole(tmp_path):
    assert run_quietly(tmp_path, "killed").returncode == -9
    assert (tmp_path / "out" / "train.log").read_text().endswith("[swap] last line\n")


def test_a_terminal_shows_a_moving_bar(tmp_path):
    ours, theirs = pty.openpty()
    run(tmp_path, stdout=theirs, stderr=theirs, check=True)
    os.close(theirs)
    shown = b""
    while b"a table" not in shown:
        shown += os.read(ours, 4096)
    os.close(ours)
    assert b"\r[swap] bar: 50%|#  | 1/2 [00:01<00:01]\x1b[K" in shown
    assert b"\r\x1b[K[swap] last line\r\n" in shown


def test_a_bars_line_that_ends_with_something_else_is_not_shown():
    assert (
        _own(b"\r[swap] bar: 100%|##| 2/2 [00:01<00:00]", "[swap]")
        == "[swap] bar: 100%|##| 2/2 [00:01<00:00]"
    )
    assert _own(b"\r[swap] bar: 0%|  | 0/2 [00:00<?]WARNING of a library", "[swap]") == ""


def test_a_full_disk_is_named_before_the_console_goes_quiet(tmp_path):
    """Nothing printed later would be seen. A limit on the size of files stands for the disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        refused = pytest.raises(RunError, match=r"train.log cannot be written \(.*\); make room")
        with refused, quiet_console(tmp_path / "train.log", "[swap]", "--verbose"):
            raise AssertionError
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


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
    flags = {
        "--swap.output_dir": tmp_path / "new" / "run",
        "--ckpt.path": tmp_path / "new" / "run" / "checkpoints",
    }
    with locked(flags):
        assert (tmp_path / "new" / "run" / "run.lock").exists()
    assert list(tmp_path.iterdir()) == []
    with locked(flags):
        (tmp_path / "new" / "run" / "train.log").touch()
    assert (tmp_path / "new" / "run" / "train.log").exists()
    (tmp_path / "empty").mkdir()
    # One folder under two flags is locked once; the user's own stays.
    with locked(
        {"--swap.output_dir": tmp_path / "empty", "--ckpt.path": tmp_path / "empty" / "x" / ".."}
    ):
        pass
    assert (tmp_path / "empty").exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EIO])
def test_a_file_system_without_locks_is_told_and_used_and_another_error_is_one(
    tmp_path, monkeypatch, capsys, number
):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OSError, match=os.strerror(errno.EIO)), locked({"--output": tmp_path}):
            pytest.fail("the folder is not locked")
        return
    with locked({"--output": tmp_path}):
        told = capsys.readouterr().out
    assert told == f"[swap] the file system of {tmp_path} has no locks; start no second run there\n"
    with locked(
        {"--output": tmp_path}
    ):  # nor is there a mark that a killed run would leave to the next
        pass
