"""Ctrl-C."""

import os
import signal
import subprocess

from support.running import training


def test_control_c_ends_with_one_line(tmp_path, prompts_file):
    """Of a training that has just begun to start Ray: no traceback, and the status that shells give
    to what SIGINT ended.
    """
    started = training(tmp_path / "run", prompts_file)
    started["env"] |= {"PYTHONUNBUFFERED": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # What a shell runs in the background ignores the signal, and so do its children.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(**started, **options, start_new_session=True) as process:
        assert any(line.startswith("[swap] attention: ") for line in process.stdout)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    line = "error: stopped by Ctrl-C; no checkpoint was written yet\n"
    assert (process.returncode, errors) == (130, line)
