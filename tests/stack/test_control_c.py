"""Ctrl-C."""

import os
import signal
import subprocess

import pytest
from support.running import training

MOMENTS = {
    "torch is imported": "[swap] all other output goes to ",
    "Ray starts, and the rest is imported": "[swap] attention: ",
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_control_c_ends_with_one_line(tmp_path, prompts_file, moment):
    """Of a training that has just begun: no traceback, and the status that shells give to what
    SIGINT ended.
    """
    started = training(tmp_path / "run", prompts_file)
    started["env"] |= {"PYTHONUNBUFFERED": "1"}
    options = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
    }
    # What a shell runs in the background ignores the signal, and so do its children.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(**started, **options) as process:
        assert any(line.startswith(MOMENTS[moment]) for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "error: stopped by Ctrl-C; no checkpoint was written yet\n"
