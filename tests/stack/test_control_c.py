"""Ctrl-C."""

import os
import signal
import subprocess
import sys

from support.paths import POLICY, ROOT

FLAGS = f"--actor.model_name_or_path {POLICY} --data.prompt_dataset ROWS.jsonl"
FLAGS += " --data.input_key problem --data.label_key answer"


def test_control_c_ends_with_one_line(tmp_path):
    """Of a training that has just begun: no traceback, and the status that shells give to what SIGINT ended."""
    (tmp_path / "ROWS.jsonl").write_text('{"problem": "What is 100 + 100?", "answer": "200"}\n')
    command = [sys.executable, "-m", "openrlhf_swap.train", *FLAGS.split()]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    # What a shell runs in the background ignores the signal, and so do its children.
    options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, cwd=tmp_path, env=environment, **options) as process:
        assert process.stdout.readline().startswith("[swap] ")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "error: stopped by Ctrl-C; no checkpoint was written yet\n"
