import math
from dataclasses import replace

import pytest
from support.sizing import NODE

from openrlhf_swap.sizing.memory import generation_seconds, step_seconds
from openrlhf_swap.sizing.models import Model

# A token's keys and values take 2 x 10 x 200 = 4,000 bytes.
MODEL = Model(10**9, 10**8, 0, 10, 1000, 10, 1000, 100, 4000, 50_000, windows=(math.inf,) * 10, cached=200)
PEAKS = (1e15, 1e12)


def test_generation_by_hand():
    """Weights and cache are read once for each token of all running responses: 600 tokens of context on average."""
    # Two engines, 256 responses each, 128 at a time: 2,000 readings of 2e9 + 128 x 600 x 4,000 bytes, .6e12 a second.
    two = replace(NODE, context=1700, prompt_limit=200, engine_responses=256)
    seconds = generation_seconds(MODEL, two, 100, 1000, 128, PEAKS)
    assert seconds == pytest.approx(2000 * (2e9 + 128 * 2.4e6) / 0.6e12)
    # Eight engines, 64 responses each, all at a time: 1,500 readings for the longest, 64,000 / 1,500 run on average.
    seconds = generation_seconds(MODEL, replace(two, engine_responses=64), 100, 1000, 64, PEAKS)
    assert seconds == pytest.approx(1500 * (2e9 + 64_000 / 1500 * 2.4e6) / 0.6e12)
    # Bound by arithmetic: 2 x 128 x 1e9 operations a reading. Two GPUs take half as long.
    for size in (1, 2):
        seconds = generation_seconds(MODEL, replace(two, tensor_parallel=size), 100, 1000, 128, (1e12, 1e12))
        assert seconds == pytest.approx(2000 * 256e9 / 0.3e12 / size)


def test_a_step_in_turn_and_at_the_same_time():
    # 7.5e16 operations on 8 GPUs that reach .3e15 each take 31.25 s.
    assert step_seconds(NODE, 10, 7.5e16, PEAKS) == {"generate": 10, "train": 31.25, "step": 41.25}
    apart = replace(NODE, shared=False, ranks=4)
    assert step_seconds(apart, 10, 7.5e16, PEAKS) == {"generate": 10, "train": 62.5, "step": 62.5}
