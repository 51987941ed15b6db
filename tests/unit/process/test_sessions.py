"""Processes that end with all that they started."""

import os
import subprocess
import sys
import time
from contextlib import suppress

import psutil
from support.paths import ROOT

from openrlhf_swap.process.sessions import STOPPED

PROGRAM = """
from openrlhf_swap.process.sessions import end_session, ended_by_sigterm, start_session
with ended_by_sigterm():
    process = start_session(["bash", "-c", "sleep 600 & echo $! > new; mv new pid; wait"])
    try:
        process.wait()
    finally:
        end_session(process)
"""


def test_what_a_process_started_ends_after_sigterm(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    process = subprocess.Popen(command, cwd=tmp_path, env=environment)
    pid = tmp_path / "pid"
    while not pid.exists():
        assert process.poll() is None
        time.sleep(0.1)
    started = psutil.Process(int(pid.read_text()))
    process.terminate()
    assert process.wait() == STOPPED
    # On a busy machine it takes a moment to be gone.
    deadline = time.monotonic() + 20
    with suppress(psutil.NoSuchProcess):
        while started.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
            time.sleep(0.1)
