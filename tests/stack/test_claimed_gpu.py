"""The tests on a claimed GPU, in a process of their own: torch must not have run a backward pass before."""

import os
import subprocess
import sys

from support.paths import ROOT


def test_on_a_claimed_gpu():
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/claimed_gpu"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}  # small tensors: threads would wait for each other
    result = subprocess.run(command, cwd=ROOT, env=one_thread, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout[-8000:]
