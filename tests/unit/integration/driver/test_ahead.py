"""The sampler that runs ahead: the age of its batches, its turns, and its errors."""

import threading
import time
from types import SimpleNamespace

import pytest
from support.actors import make_config
from support.loops import ListedBatches, run_args

from openrlhf_swap.errors import RunError
from openrlhf_swap.integration.driver import ahead
from openrlhf_swap.integration.driver.ahead import Ahead
from openrlhf_swap.objectives.registry import build

WAIT = 20  # seconds, after which a thread hangs


@pytest.fixture
def make(arguments):
    """Makes a sampler that runs ahead of `groups_of`, and the sampler itself."""

    def make(groups_of, size=1, pauses=False, objective="grpo", **options):
        sampling = build(make_config(objective=objective, options=options))
        sampler = ListedBatches(run_args(arguments, "."), sampling, groups_of, [{"a": 1.0}])
        return Ahead(sampler, ["engine"], size, pauses), sampler

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
        assert batch.objective_step == number and batch.metrics["timing/sampled_ahead"] >= 0
        ages.append(batch.metrics["swap/batch_age"])
        expected = min(8, number + size)
        until(lambda: len(drawn) >= expected)  # noqa: B023 - it is called at once
        assert len(drawn) <= number + size
        with running.replacing_weights():
            pass
    assert ages[0] == 0 and max(ages) == size and len(ages) == 8


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


def test_an_error_of_the_thread_is_the_loops(make):
    def groups_of(objective):
        if objective.step == 1:
            raise RunError("stuck")
        return [[]]

    running, _ = make(groups_of)
    batches = running.batches({})
    next(batches)
    with pytest.raises(RunError, match="stuck"):
        next(batches)


def test_partial_rollouts_pause_the_engines_instead(make, monkeypatch):
    calls = []
    monkeypatch.setattr(ahead, "batch_vllm_engine_call", lambda _, name: calls.append(name))
    running, sampler = make(lambda objective: None, pauses=True)
    with running.replacing_weights():
        calls.append("weights")
    assert calls == ["pause_generation", "weights", "resume_generation"]
    assert sampler.updates == 1 and running.evaluate(3) == {"a": 1.0}


def test_a_thread_that_waits_ends_with_its_engines(make, monkeypatch):
    ended = threading.Event()

    def groups_of(objective):
        assert ended.wait(WAIT)
        raise RunError("its engine is gone")

    monkeypatch.setattr(ahead, "ray", SimpleNamespace(kill=lambda engine: ended.set()))
    running, _ = make(groups_of)
    batches = running.batches({})

    def wait():
        with pytest.raises(RunError):
            next(batches)

    waiting = threading.Thread(target=wait)
    waiting.start()
    until(lambda: running._thread)
    running.stop()
    waiting.join(WAIT)
    assert not running._thread.is_alive() and not waiting.is_alive()
