"""Scoring under ZeRO-3 on two ranks, whose forwards have to stay in lockstep."""

import os
import subprocess
import sys

import pytest
from support.paths import ROOT

pytestmark = pytest.mark.slow


def test_ranks_with_unequal_work_score_as_one_forward_a_prefix():
    """Windows, latent attention and recurrent layers; packed or not; one rank without any."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"}
    command = [sys.executable, "-m", "support.scoring_ranks"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert result.returncode == 0, result.stderr[-3000:]
    found = [line.split() for line in result.stdout.splitlines() if line.startswith("differ")]
    assert len({tuple(line[1:4]) for line in found}) == 2 * 5 and len(found) == 20
    assert max(float(line[4]) for line in found) < 1e-4
