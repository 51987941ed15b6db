"""Scoring under ZeRO-3 on two ranks, whose forwards have to stay in lockstep."""

import pytest
from support.scripts import python


@pytest.mark.slow
def test_ranks_with_unequal_work_score_as_one_forward_a_prefix():
    """Windows, latent attention and recurrent layers; packed or not; one rank without any."""
    result = python("-m", "support.scoring_ranks")
    assert result.returncode == 0, result.stderr[-3000:]
    found = [line.split() for line in result.stdout.splitlines() if line.startswith("differ")]
    assert len({tuple(line[1:4]) for line in found}) == 2 * 5 and len(found) == 20
    assert max(float(line[4]) for line in found) < 1e-4
