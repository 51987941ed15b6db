"""Ctrl-C."""

import os
import signal
import subprocess

from support.running import training


def test_control_c_ends_with_one_line(tmp_path, prompts_file):
    """A training that has just begun to start Ray ends without a traceback.

    Its status is what shells give to a command that SIGINT ended.
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
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "error: stopped by Ctrl-C; no checkpoint was written yet\n"
