"""Ctrl-C, and a signal that ends a training like it."""

import os
import signal
import subprocess

import pytest
from support.running import training


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_signal_ends_with_one_line(tmp_path, prompts_file, number, name):
    """A training that has just begun to start Ray ends without a traceback.

    Its status is what shells give to a command that the signal ended.
    """
    command = training(tmp_path / "run", prompts_file)
    command["env"]["PYTHONUNBUFFERED"] = "1"
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        # What a shell runs in the background ignores the signal, and so do its children.
        "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    }
    with subprocess.Popen(**command, **options) as process:
        assert any(line.startswith("[swap] attention: ") for line in process.stdout)
        if number == signal.SIGINT:  # a terminal sends it to all
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert errors == f"error: stopped by {name}; no checkpoint was written yet\n"
