"""Two ranks under ZeRO-3, whose forwards have to stay in lockstep."""

import os
import sys

import pytest
from support.scripts import python


@pytest.mark.slow
def test_ranks_with_unequal_work_score_and_learn_as_one():
    """Windows, latent attention and recurrent layers; packed or not; one rank without any scores.

    The gradients are those of all logits, with a head of its own, a weight more, and a tied one.
    """
    # The tools that compile DeepSpeed's op are those of the environment.
    path = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    result = python("-m", "support.scoring_ranks", PATH=path, TORCHDYNAMO_DISABLE="1")
    assert result.returncode == 0, result.stderr[-3000:]
    lines = [line.split() for line in result.stdout.splitlines()]
    found = [line for line in lines if line[:1] == ["differ"]]
    assert len(found) == 20
    # Two ranks, and five pairs of a family and a packing.
    assert len({tuple(line[1:4]) for line in found}) == 2 * 5
    assert max(float(line[4]) for line in found) < 1e-4
    equal = sorted(line[1:] for line in lines if line[:1] == ["equal"])
    assert equal == [["0", "26"], ["0", "27"], ["1", "26"], ["1", "27"]]
