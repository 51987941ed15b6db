"""The console of a run, in a process of its own, because it redirects both outputs."""

import os
import subprocess
import sys

import pytest
from support.paths import ROOT

from openrlhf_swap.process.console import bar_text, own_text

PROGRAM = """
import atexit, os, subprocess, sys, time
from pathlib import Path
from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.process.console import quiet_console

class OfRay(Exception):
    def __init__(self, cause):
        self.cause = cause

def command(argv):
    with quiet_console(Path("out/train.log"), "[swap]", "--verbose"):
        print("a library's line")
        os.write(2, b"(Trainer pid=12, ip=10.0.0.2) [swap] step 1\\n(Trainer pid=12) its noise\\n")
        subprocess.run(["echo", "[swap] from a child"])
        sys.stderr.write("\\r[swap] bar:  0%|   | 0/2\\r[swap] bar: 50%|#  | 1/2 [00:01<00:01]")
        time.sleep(0.5)
        sys.stderr.write("\\r           \\r")
        print("[swap] last line")
        if argv == ["killed"]:
            os.kill(os.getpid(), 9)
        errors = {"ours": ConfigError("--x is 1; use 2"), "other": OfRay(KeyError("no such"))}
        if argv:
            raise errors[argv[0]]
    print("a table")
    atexit.register(lambda: os.write(2, b"[swap] complaint of a library at the end"))

sys.exit(run_command(command))
"""
TWO_THREADS = """
import sys, threading
from pathlib import Path
from openrlhf_swap.process.console import quiet_console, say

def print_as_ray(done):
    while not done.is_set():
        print("(Actor pid=7) \\rTrain epoch: 0%|  | 0/1 [00:00<?]", file=sys.stdout)

sys.setswitchinterval(1e-6)
with quiet_console(Path("train.log"), "[swap]", "--verbose"):
    done = threading.Event()
    thread = threading.Thread(target=print_as_ray, args=[done])
    thread.start()
    for step in range(300):
        say(f"step {step}")
    done.set()
    thread.join()
"""
FIRST = "[swap] all other output goes to out/train.log; --verbose shows it here"
LINES = [FIRST, "[swap] step 1", "[swap] from a child", "[swap] last line"]


def run(folder, *argv, program=PROGRAM, **options):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *argv]
    return subprocess.run(command, cwd=folder, env=environment, **options)


def run_quietly(folder, *argv, **options):
    return run(folder, *argv, capture_output=True, text=True, check=False, **options)


def test_own_lines_are_shown_and_all_lines_are_logged(tmp_path):
    result = run_quietly(tmp_path)
    assert result.returncode == 0
    assert result.stderr == ""
    assert result.stdout.splitlines() == [*LINES, "a table"]
    log = (tmp_path / "out" / "train.log").read_text()
    for line in (*LINES, "a library's line", "its noise", "complaint of a library at the end"):
        assert line in log
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
    assert result.returncode == 2
    assert result.stderr == error
    assert result.stdout.splitlines() == LINES
    log = (tmp_path / "out" / "train.log").read_text()
    assert ("Traceback" in log and "OfRay" in log) == (what == "other")


def test_the_log_of_a_killed_process_is_whole(tmp_path):
    assert run_quietly(tmp_path, "killed").returncode == -9
    assert (tmp_path / "out" / "train.log").read_text().endswith("[swap] last line\n")


def test_no_line_is_lost_or_joined_while_another_thread_prints(tmp_path):
    """Ray's thread prints what actors print, among it bars, which are flushed before their end."""
    lines = run_quietly(tmp_path, program=TWO_THREADS).stdout.splitlines()
    assert lines[1:] == [f"[swap] step {step}" for step in range(300)]


BAR = "[swap] bar: 100%|##| 2/2 [00:01<00:00]"
ENGINE = "(SwapRolloutActor pid=5098) (EngineCore pid=5249) "
SCORES = "[swap] warning: scoring takes one forward for each prefix"


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("[swap] step 1", "[swap] step 1"),
        # Ray's prefix, and vLLM's behind it
        (ENGINE + "[swap] vLLM: it loads the weights", "[swap] vLLM: it loads the weights"),
        (f"(IntrinsicRewardActor pid=7, ip=10.0.0.2) {SCORES}", SCORES),
        ("\r[swap] bar: 50%|# | 1/2\r" + BAR, BAR),
        ("\r[swap] bar: 0%|  | 0/2 [00:00<?]WARNING of a library", ""),  # in a bar's line
        (f"(IntrinsicRewardActor pid=7) \rTrain epoch: 0%|  | 0/1 [00:00<?]{SCORES}", SCORES),
        ('    print("[swap] vLLM: an engine starts", flush=True)', ""),  # in a traceback
    ],
)
def test_lines_of_actors_and_of_their_engines_are_known(line, shown):
    assert own_text(line.encode(), "[swap]") == shown


def test_a_line_whose_end_is_still_to_be_written_is_no_bar():
    """Python writes text and line end apart where its output is unbuffered."""
    assert bar_text(b"[swap] step 1", "[swap]") == ""
    assert bar_text(b"\r[swap] bar: 50%|# | 1/2\r" + BAR.encode(), "[swap]") == BAR
