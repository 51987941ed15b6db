"""A tau that is a number of deviations of a group's gains, and how far weights are from uniform: by hand."""

import math
from dataclasses import replace

import pytest
import torch

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.algorithm.advantages import step_signals, step_tau
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.runs.metrics import distances_from_uniform

# Gains of 1, 0, -1 and of 2: mean 1/2, squares 1/4, 1/4, 9/4, 9/4, so the unbiased variance is 5/3. The median of the
# lengths is 20, so P = 1/2 for the longer one. The wrong response has scores that must not count.
LONG = StepTrace(30, True, [-3.0, -2.0, -2.0, -3.0], [4, 9, 19])
SHORT = StepTrace(10, True, [-3.0, -1.0], [7])
WRONG = StepTrace(40, False, [0.0, 50.0], [7])
GROUP = [LONG, SHORT, WRONG]
HALF = SwapConfig(tau="0.5sd")


def weights_of(gains, tau):
    powers = [math.exp(-gain / tau) for gain in gains]
    return [power / sum(powers) for power in powers]


def stretched(trace, factor):
    return replace(trace, answer_logprobs=[factor * score for score in trace.answer_logprobs])


def signals(group, config):
    return step_signals(StepBatch.from_traces([group]), coefficients(config))


def test_weights_in_deviations_by_hand():
    found = signals(GROUP, HALF)
    expected = [weight / 2 for weight in weights_of([1, 0, -1], math.sqrt(5 / 3) / 2)]
    assert found.penalties[0, 0].tolist() == pytest.approx(expected)
    assert expected == pytest.approx([0.0179, 0.0845, 0.3976], abs=1e-4)
    in_nats = SwapConfig(tau=math.sqrt(5 / 3) / 2)
    for ours, theirs in zip(swap_advantages(GROUP, HALF), swap_advantages(GROUP, in_nats), strict=True):
        assert torch.allclose(ours, theirs)


def test_weights_from_monotone_gains_by_hand():
    # Delta is 1, 0, 0 and 2: mean 3/4, squares 1/16, 9/16, 9/16, 25/16, unbiased variance 11/12. The last step of the
    # longer one lost a nat, and pays no more than the idle one before it.
    found = signals(GROUP, HALF.replaced(weights_from="monotone"))
    expected = [weight / 2 for weight in weights_of([1, 0, 0], math.sqrt(11 / 12) / 2)]
    assert found.penalties[0, 0].tolist() == pytest.approx(expected)


def test_the_unit_of_the_gains_and_other_groups_do_not_matter():
    alone = signals(GROUP, HALF).penalties[0]
    others = [stretched(trace, 7.0) for trace in GROUP]
    both = step_signals(StepBatch.from_traces([GROUP, others]), coefficients(HALF)).penalties
    assert torch.allclose(both[0], alone) and torch.allclose(both[1], alone)
    in_nats = step_signals(StepBatch.from_traces([GROUP, others]), coefficients(SwapConfig())).penalties
    assert (in_nats[0] - in_nats[1]).abs().max() > 0.1


def test_gains_without_a_spread_are_penalised_evenly_and_noise_is_not_blown_up():
    alike = [StepTrace(30, True, [-1.0, -1.0, -1.0], [4, 9]), StepTrace(10, True, [-1.0, -1.0], [7])]
    assert signals(alike, HALF).penalties[0, 0].tolist() == [0.25, 0.25]
    one = [StepTrace(30, True, [-1.0, 0.0], [4]), WRONG]
    batch = StepBatch.from_traces([one])
    gains = batch.answer_logprobs.diff(dim=-1)
    assert step_tau(gains, batch.step_mask, coefficients(HALF)).flatten().tolist() == [math.inf]
    noise = [stretched(trace, 0.001) for trace in GROUP]
    floored = signals(noise, HALF.replaced(step_noise=0.02)).penalties[0, 0]
    assert floored.tolist() == pytest.approx([w / 2 for w in weights_of([0.001, 0, -0.001], 0.01)])


def test_distances_from_uniform_by_hand():
    mask = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
    penalties = torch.tensor([[0.4, 0.0, 0.0, 0.4], [0.1, 0.1, 0.0, 0.0], [3.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    # Half of the first one's penalty is not where uniform weights put it; a single step has no choice.
    assert distances_from_uniform(penalties, mask).tolist() == pytest.approx([0.5, 0.0])
    assert distances_from_uniform(torch.zeros_like(penalties), mask).numel() == 0
    uniform = signals(GROUP, SwapConfig(objective="uniform_penalty"))
    assert distances_from_uniform(uniform.penalties, StepBatch.from_traces([GROUP]).step_mask).tolist() == [0.0]
