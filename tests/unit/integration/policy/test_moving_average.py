"""The moving average of the weights, by hand."""

from collections import defaultdict

import pytest
import torch

from openrlhf_swap.integration.policy.strategy import SwapStrategy
from openrlhf_swap.integration.policy.weights import begin_average, load_average, rounded_average, save_average

BETA = 0.992
STEP = 2.0**-7  # from 1 to the next number in bfloat16


def make_model(weight):
    model = torch.nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    torch.nn.init.constant_(model.weight, weight)
    return model


def make_average(weight=1.0):
    average = make_model(weight)
    begin_average(average, first=True)
    return average


@pytest.fixture
def strategy():
    """OpenRLHF's as far as it averages, with two micro-batches an update."""
    made = SwapStrategy.__new__(SwapStrategy)
    made.time_steps, made.accumulated_gradient, made.use_dynamic_batch, made.stage = defaultdict(int), 2, False, 2
    return made


def train(strategy, average, updates):
    for _ in range(strategy.accumulated_gradient * updates):
        strategy.moving_average(make_model(1 + STEP), average, BETA, "cpu")


def test_the_smallest_change_of_a_weight_reaches_the_average(strategy):
    """In bfloat16 the average would stay at 1: what an update adds is less than 1% of the distance to the next one."""
    average = make_average()
    train(strategy, average, 300)
    expected = 1 + STEP * (1 - BETA**300)
    assert torch.allclose(average.weight, torch.full((2, 2), expected), rtol=0, atol=1e-5)


def test_a_resumed_average_goes_on_where_it_was(strategy, tmp_path):
    straight, stopped, resumed = make_average(), make_average(), make_average(5.0)
    train(strategy, straight, 7)
    strategy.time_steps.clear()
    train(strategy, stopped, 3)
    save_average(tmp_path, stopped, strategy)
    strategy.time_steps.clear()
    load_average(tmp_path, resumed, strategy)
    assert strategy.time_steps["ema"] == 2 * 3
    train(strategy, resumed, 4)
    assert torch.equal(resumed.weight, straight.weight)


def test_it_is_exported_as_the_policy_is_and_stays_exact(strategy):
    average = make_average()
    for _ in range(strategy.accumulated_gradient):
        strategy.moving_average(make_model(1 + STEP), average, 0.25)
    exact = average.weight.clone()
    with pytest.raises(OSError, match="full"), rounded_average(average):
        assert average.weight.dtype == torch.bfloat16
        assert torch.equal(average.state_dict()["weight"], make_model(1 + STEP).weight)  # 1 + 0.75 STEP, rounded
        raise OSError("full")
    assert average.weight.dtype == torch.float32 and torch.equal(average.weight, exact)


def test_only_the_first_rank_holds_one():
    other = make_model(1.0)
    begin_average(other, first=False)
    with rounded_average(other):
        assert other.weight.numel() == 0
    with rounded_average(None):
        pass  # a run without an average
