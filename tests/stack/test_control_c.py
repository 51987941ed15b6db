"""Ctrl-C, and a signal that ends a training like it."""

import os
import signal
import subprocess
from contextlib import contextmanager

import psutil
import pytest
from support.disturbing import assert_gone
from support.running import training


def heed_signals():
    """Undo that a command in the background of a shell, and its children, ignore these."""
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def starting(folder, prompts):
    """A training that has just begun to start Ray."""
    command = training(folder / "run", prompts)
    command["env"]["PYTHONUNBUFFERED"] = "1"
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        "preexec_fn": heed_signals,
    }
    with subprocess.Popen(**command, **options) as process:
        assert any(line.startswith("[swap] attention: ") for line in process.stdout)
        yield process


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_ends_with_one_line(tmp_path, prompts_file, number, name):
    """There is no traceback, and the status is what shells give to what the signal ended."""
    with starting(tmp_path, prompts_file) as process:
        if number == signal.SIGINT:  # a terminal sends it to all
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == f"error: stopped by {name}; no checkpoint was written yet\n"


def test_sigquit_ends_everything_at_once(tmp_path, prompts_file):
    """Ctrl-\\ is for what Ctrl-C does not end: nothing is handled, and nothing lives on."""
    with starting(tmp_path, prompts_file) as process:
        started = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGQUIT)
        assert process.wait(timeout=60) == -signal.SIGQUIT
        assert_gone(started)
