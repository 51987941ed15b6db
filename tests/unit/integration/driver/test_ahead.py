"""The sampler that runs ahead: the age of its batches, its turns, and its errors."""

import threading
import time

import pytest
from support.actors import make_config
from support.loops import ListedBatches, run_args

from openrlhf_swap.integration.driver.ahead import Ahead
from openrlhf_swap.objectives.registry import build

WAIT = 20  # seconds, after which a thread hangs


@pytest.fixture
def make(arguments):
    """Makes a sampler that runs ahead of `groups_of`, and the sampler itself."""

    def make(groups_of, size=1, pauses=False, objective="grpo", **options):
        sampling = build(make_config(objective=objective, options=options))
        flags = {"train.async_queue_size": size, "train.partial_rollout_enable": pauses}
        args = run_args(arguments, ".", **flags)
        sampler = ListedBatches(args, sampling, groups_of, [{"a": 1.0}])
        return Ahead(sampler, ["engine"], args), sampler

    return make


def until(condition):
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize("size", [1, 3])
def test_so_many_batches_wait_and_their_age_is_counted(make, size):
    drawn = []

    def groups_of(objective):
        drawn.append(objective.step)
        return None if objective.step == 8 else [["response"]]

    running, _ = make(groups_of, size)
    ages = []
    for number, batch in enumerate(running.batches({}), 1):
        assert batch.objective_step == number
        assert batch.metrics["timing/sampled_ahead"] >= 0
        ages.append(batch.metrics["swap/batch_age"])
        expected = min(8, number + size)
        until(lambda: len(drawn) >= expected)  # noqa: B023 - it is called at once
        assert len(drawn) <= number + size
        with running.replacing_weights():
            pass
    assert ages[0] == 0
    assert max(ages) == size
    assert len(ages) == 8


def test_weights_take_turns_with_whole_batches(make):
    sampling = threading.Event()
    order = []

    def groups_of(objective):
        sampling.set()
        time.sleep(0.05)
        order.append(f"batch {objective.step}")
        return None if objective.step == 4 else [[]]

    running, _ = make(groups_of, 4)
    batches = running.batches({})
    next(batches)
    sampling.clear()
    assert sampling.wait(WAIT)
    with running.replacing_weights():
        order.append("weights")
        before = len(order)
        time.sleep(0.1)
        assert len(order) == before  # nothing is sampled meanwhile
    list(batches)
    # Whoever waits comes next, though more batches may be sampled.
    assert order.index("weights") <= 3


def test_a_state_travels_with_its_batch(make):
    """Stages of two steps: the loop's objective takes the limit that its batch was drawn with."""
    limits = []

    def groups_of(objective):
        if objective.step == 4:
            return None
        limits.append(objective.sampling("p", 1, 320)[0].max_new_tokens)
        return [[]]

    options = {"limits": "300,200,100", "stage_steps": "2"}
    running, sampler = make(groups_of, 4, objective="thinkprune", **options)
    learning = build(sampler._objective.config)
    seen = []
    for batch in running.batches({}):
        learning.resume(batch.objective_step, batch.objective_state)
        seen.append(learning.limit)
    assert seen == limits == [300, 300, 200, 200]
