import math
from dataclasses import replace

import pytest
from support.sizing import NODE

from openrlhf_swap.sizing.models import Model
from openrlhf_swap.sizing.speed import generation_seconds, step_seconds

# A token's keys and values take 2 x 10 x 200 = 4,000 bytes.
MODEL = Model(10**9, 10**8, 0, 10, 1000, 10, 1000, 100, 4000, 50_000, windows=(math.inf,) * 10, cached=200)
PEAKS = (1e15, 1e12)


def step(mean, most, flops=0.0, count=512):
    numbers = {"responses": count, "mean_response": mean, "tokens": count * mean, "most_tokens": count * most}
    return {**numbers, "flops": {"generate": 1e30, "update": flops}}


def test_generation_by_hand():
    """Weights and cache are read once for each token of all running responses: 600 tokens of context on average."""
    settings = replace(NODE, batch=512)
    # Two engines, 256 responses each, 128 at a time: 2,000 readings of 2e9 + 128 x 600 x 4,000 bytes, .6e12 a second.
    found = generation_seconds(MODEL, settings, 2, step(1000, 1500), 100, 128, PEAKS)
    assert found == pytest.approx(2000 * (2e9 + 128 * 2.4e6) / 0.6e12)
    # Eight engines, 64 responses each, all at a time: 1,500 readings for the longest, 64,000 / 1,500 run on average.
    found = generation_seconds(MODEL, settings, 8, step(1000, 1500), 100, 128, PEAKS)
    assert found == pytest.approx(1500 * (2e9 + 64_000 / 1500 * 2.4e6) / 0.6e12)
    # Bound by arithmetic: 2 x 128 x 1e9 operations a reading.
    found = generation_seconds(MODEL, settings, 2, step(1000, 1500), 100, 128, (1e12, 1e12))
    assert found == pytest.approx(2000 * 256e9 / 0.3e12)


def test_the_longest_response_decides_which_layout_is_faster():
    settings = replace(NODE, batch=512)
    even = step_seconds(MODEL, settings, step(1000, 1000, flops=7.5e16, count=8192), 100, 128, PEAKS)
    assert even["in_turn"]["step"] < even["fastest"]["step"]  # every engine has more than it runs at a time
    tail = step_seconds(MODEL, settings, step(1000, 12_000, flops=7.5e16), 100, 128, PEAKS)
    assert tail["fastest"]["step"] < tail["in_turn"]["step"]  # more engines do not make it shorter
    assert tail["in_turn"]["train"] == pytest.approx(7.5e16 / (8 * 0.3e15))


def test_a_split_of_its_own_is_one_of_the_splits():
    settings = replace(NODE, batch=512, shared=False, ranks=4, engines=2, tensor_parallel=2)
    ways = step_seconds(MODEL, settings, step(1000, 1000, flops=1e17), 100, 128, PEAKS)
    assert ways["apart"]["gpus"] == 4 and ways["fastest"]["step"] <= ways["apart"]["step"]
    assert ways["apart"]["step"] == max(ways["apart"]["generate"], ways["apart"]["train"])
    assert set(step_seconds(MODEL, replace(NODE, ranks=1, engines=1), step(9, 9), 9, 128, PEAKS)) == {"in_turn"}
