"""The step arithmetic by hand, and beside a slow version in plain Python."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow_advantages import EPS, slow_advantages

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.algorithm.advantages import (
    outcome_advantages,
    process_advantages,
    standardise,
    step_credit,
    step_tau,
    sum_to_come,
    target_lengths,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.config import ABLATION
from openrlhf_swap.errors import NonFiniteError
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.runs.metrics import distances_from_uniform

# The worked group: three correct responses and a wrong one (tau = lambda = beta = 1, theta = 0.3).
WORKED = [
    StepTrace(1400, True, [-4, -3, -3.2, -1, -1.1], [349, 699, 1049, 1389]),
    StepTrace(700, True, [-4, -3.5, -0.5], [349, 689]),
    StepTrace(1050, True, [-4, -2, -2.5, -2.2], [349, 699, 1039]),
    StepTrace(400, False, [], []),
]
# Settings, and the arguments of the slow version that mean the same.
SETTINGS = [
    ({"objective": "swap"}, {}),
    ({"objective": "grpo"}, {"theta": 0.0}),
    ({"objective": "outcome_only"}, {"theta": 0.0, "shaped": True}),
    ({"objective": "step_only"}, {"beta": 0.0}),
    ({"objective": "no_penalty"}, {"lam": 0.0}),
    ({"objective": "static_penalty"}, {"lam": 0.0, "static": 0.1}),
    ({"objective": "uniform_penalty"}, {"tau": math.inf}),
    ({"step_noise": 0.02}, {"noise": 0.02}),
    ({"step_noise": 3.0}, {"noise": 3.0}),
    ({"weights_from": "monotone"}, {"monotone": True}),
    ({"step_price": "weights"}, {"by_weights": True}),
    ({"step_price": "weights", "step_noise": 3.0}, {"by_weights": True, "noise": 3.0}),
    (
        {"step_price": "weights", "weights_from": "monotone"},
        {"by_weights": True, "monotone": True},
    ),
    ({"step_discount": 0.0}, {"gamma": 0.0}),
    ({"step_discount": 0.5}, {"gamma": 0.5}),
    ({"step_reward": "need"}, {"need": True}),
    ({"step_reward": "need", "step_discount": 0.0}, {"need": True, "gamma": 0.0}),
    ({"step_reward": "need", "step_discount": 0.5}, {"need": True, "gamma": 0.5}),
]
few = settings(max_examples=40)  # a group is slow to draw


@st.composite
def traces(draw):
    steps = draw(st.integers(0, 6))
    ends = []
    length = 0
    for _ in range(steps):
        length += draw(st.integers(1, 9))
        ends.append(length - 1)
    length += draw(st.integers(1, 9))
    scores = draw(st.lists(st.floats(-8, 0), min_size=steps + 1, max_size=steps + 1))
    need = draw(st.lists(st.floats(-0.1, 4), min_size=steps, max_size=steps))
    correct = draw(st.booleans())
    return StepTrace(length, correct, scores, ends, {"need": need})


groups = st.lists(traces(), min_size=2, max_size=6)


def credit_of(group, config):
    return step_credit(StepBatch.from_traces([group]), coefficients(config))


def assert_at(row, places, expected, within=1e-5):
    """The advantages of some tokens of a response."""
    assert row[places].tolist() == pytest.approx(expected, abs=within)


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        assert torch.equal(one, other)


def test_the_worked_group_has_the_published_advantages():
    long, short, middle, wrong = swap_advantages(WORKED, SwapConfig())
    assert_at(long, [349, 699, 1049, 1389], [0.2507, 0.2380, 0.5105, 0.2311], 5e-5)
    assert_at(short, [349, 689], [0.9363, 1.0418], 5e-5)
    assert_at(middle, [349, 699, 1039], [0.3130, 0.0301, 0.2651], 5e-5)
    # Behind the steps stands the outcome alone: of 1, 1, 1, 0 the mean is .75, the deviation .5.
    assert long[-1].item() == pytest.approx(0.25 / (0.5 + EPS))
    assert wrong.tolist() == pytest.approx([-0.75 / (0.5 + EPS)] * 400)


@pytest.mark.parametrize(("changes", "arguments"), SETTINGS)
@given(group=groups)
@few
def test_agrees_with_the_slow_version(changes, arguments, group):
    fast = swap_advantages(group, SwapConfig(**changes))
    slow = slow_advantages(group, **arguments)
    for row, expected in zip(fast, slow, strict=True):
        assert row.tolist() == pytest.approx(expected, rel=0, abs=1e-9)


def test_every_row_of_the_ablation_is_compared():
    assert [changes["objective"] for changes, _ in SETTINGS[: len(ABLATION)]] == list(ABLATION)


# Both are correct and as long as the target, so nobody pays: rewards 2, 0 and 1, mean 1, unbiased
# deviation 1. So r~ is 1, -1 and 0.
FREE = [StepTrace(8, True, [-3, -1, -1], [2, 5]), StepTrace(8, True, [-3, -2], [2])]


def test_prices_by_hand():
    credit = credit_of(FREE, SwapConfig())
    assert credit.deviation.item() == pytest.approx(1)
    assert credit.baseline.item() == pytest.approx(1 / (1 + EPS))
    # The second step of the first response gained nothing: without it theta would be saved.
    row, other = swap_advantages(FREE, SwapConfig())
    assert_at(row, [0, 3, 6], [0, -0.3, 0])
    assert_at(other, [0], [0])


def test_prices_by_weights_by_hand():
    # g is 2 and 0, so w = e^-2/(e^-2 + 1) and 1/(e^-2 + 1): the step without a gain pays 2 * .88 of
    # the response's 2, the other one the rest. A step alone has its baseline.
    row, other = swap_advantages(FREE, SwapConfig(step_price="weights"))
    assert_at(row, [0, 3, 6], [0, -0.3 * 2 / (math.exp(-2) + 1), 0])
    assert_at(other, [0], [0])


@pytest.mark.parametrize(
    ("gamma", "expected"),
    [
        (1.0, [0, -1, 0]),
        (0.5, [0.5, -1, 0]),
        (0.0, [1, -1, 0]),
    ],
)
def test_gamma_says_how_far_a_reward_reaches(gamma, expected):
    row, other = swap_advantages(FREE, SwapConfig(step_discount=gamma, process_weight=1.0))
    assert_at(row, [0, 3, 6], expected)
    assert not other.round(decimals=5).any()


def test_discounted_sums_by_hand():
    rewards = torch.tensor([[4.0, 2.0, 1.0]])
    assert sum_to_come(rewards, 0.5).tolist() == [[4 + 1 + 0.25, 2 + 0.5, 1]]
    assert torch.equal(sum_to_come(rewards, 0.0), rewards)


@given(groups)
@few
def test_the_papers_credit_is_a_plain_sum_bit_for_bit(group):
    normalised = credit_of(group, SwapConfig()).normalised
    expected = normalised.flip(-1).cumsum(-1).flip(-1)
    assert torch.equal(sum_to_come(normalised, SwapConfig().step_discount), expected)


NEED = SwapConfig(objective="step_only", step_reward="need", step_discount=0.0, process_weight=1.0)


def test_a_step_earns_what_the_rest_needs_of_it_by_hand():
    """Gains 2, 0 and 1 nats, needs 0, 3 and 1 nats: rewards 2, 3 and 2, whoever is too long.

    Their mean is 7/3, their unbiased deviation sqrt(1/3): r~ is -.577, 1.155, -.577.
    """
    group = [
        StepTrace(18, True, [-3, -1, -1], [2, 5], {"need": [0, 3]}),
        StepTrace(8, True, [-3, -2], [2], {"need": torch.tensor([1.0])}),
        StepTrace(9, False, (), ()),
    ]
    rows = swap_advantages(group, NEED)
    low = -1 / math.sqrt(3)
    assert_at(rows[0], [0, 3, 6], [low, 2 / math.sqrt(3), 0])
    assert_at(rows[1], [0, 3], [low, 0])
    assert not rows[2].any()
    credit = credit_of(group, NEED)
    assert not credit.penalties.any()
    assert not credit.penalty_mass.any()
    # Neither tau nor lambda matters.
    assert_equal(swap_advantages(group, NEED.replaced(tau=0.1, length_coef=9.0)), rows)


@pytest.mark.parametrize("gamma", [0.0, 1.0])
def test_a_step_whose_need_was_not_read_neither_earns_nor_pays_by_hand(gamma):
    """The second step's reward is left out: 2 and 4 remain, of mean 3 and deviation sqrt(2)."""
    group = [
        StepTrace(9, True, [-3, -1, -1], [2, 5], {"need": [0, math.nan]}),
        StepTrace(4, True, [-3, -2], [2], {"need": [3.0]}),
    ]
    long, short = swap_advantages(group, NEED.replaced(step_discount=gamma))
    side = math.sqrt(0.5)
    assert long.tolist() == pytest.approx([-side] * 3 + [0] * 6, abs=1e-5)
    assert short.tolist() == pytest.approx([side] * 3 + [0], abs=1e-5)


def test_noise_of_the_scores_stays_small():
    # Gains of 3e-4 nats, which are noise: rewards .0003, 0 and 0, mean .0001, deviation .000173205.
    # The second step has theta (0 - .0001)/(.000173205 + 1e-6), or over .020001.
    group = [StepTrace(8, True, [-1, -0.9997, -0.9997], [2, 5]), StepTrace(8, True, [-1, -1], [2])]
    as_published = swap_advantages(group, SwapConfig())[0].abs().max()
    assert as_published.item() == pytest.approx(0.3 * 0.0001 / 0.000174205, rel=1e-5)
    with_floor = swap_advantages(group, SwapConfig(step_noise=0.02))[0].abs().max()
    assert with_floor.item() == pytest.approx(0.3 * 0.0001 / 0.020001, rel=1e-5)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"length_coef": 0.0}, {"objective": "no_penalty"}),
        ({"tau": math.inf}, {"objective": "uniform_penalty"}),
        ({"process_weight": 0.0}, {"objective": "grpo"}),
        ({"outcome_weight": 0.0}, {"objective": "step_only"}),
    ],
)
@given(group=groups)
@few
def test_reductions_are_exact(left, right, group):
    assert_equal(
        swap_advantages(group, SwapConfig(**left)), swap_advantages(group, SwapConfig(**right))
    )


@given(
    st.lists(traces(), min_size=1, max_size=5),
    st.sampled_from(list(ABLATION)),
    st.floats(1e-300, 1e300),
    st.sampled_from(["steps", "weights"]),
)
@few
def test_finite_in_finite_out(group, objective, tau, price):
    config = SwapConfig(objective=objective, tau=tau, step_price=price)
    for row in swap_advantages(group, config):
        assert row.isfinite().all()


def test_a_constant_group_gives_zero_not_noise():
    # Seven times 0.95 in float32 has a standard deviation of 6e-8.
    assert not outcome_advantages(torch.full((1, 7), 0.95), EPS).any()
    same = [StepTrace(10, True, [-1.0, -0.95], [5])] * 7
    assert not torch.stack(swap_advantages(same, SwapConfig())).any()


@pytest.mark.parametrize(("unbiased", "variance"), [(True, 7), (False, 14 / 3)])
def test_values_are_standardised_by_hand(unbiased, variance):
    """Of 1, 2 and 6 the mean is 3; one value, or equal values, have no deviation."""
    values = torch.tensor([[1.0, 2.0, 99.0, 6.0], [5.0, 5.0, 5.0, 0.0], [7.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    found = standardise(values, mask, 0.1, unbiased)
    divisor = math.sqrt(variance) + 0.1
    assert found[0].tolist() == pytest.approx([-2 / divisor, -1 / divisor, 0, 3 / divisor])
    assert not found[1:].any()
    assert found.dtype == torch.float64


def test_the_target_is_the_mean_of_the_middle_two():
    lengths = torch.tensor([[10, 40, 20, 30, 999]])
    correct = lengths < 999
    assert target_lengths(lengths, correct).tolist() == [25.0]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_not_finite_is_named(bad):
    group = [StepTrace(9, True, [-4, -1], [3]), StepTrace(9, True, [-4, bad, -1], [3, 5])]
    with pytest.raises(NonFiniteError, match=r"response 1 of group 0: answer_logprobs\[1\] is"):
        swap_advantages(group, SwapConfig())
    infinite = StepTrace(9, True, [-4, -1, -1], [3, 5], {"need": [math.nan, math.inf]})
    with pytest.raises(NonFiniteError, match=r"need\[1\] is inf"):
        swap_advantages([infinite], SwapConfig(step_reward="need"))


@given(st.lists(st.lists(traces(), min_size=3, max_size=3), min_size=2, max_size=3))
@few
def test_a_batch_of_groups_equals_the_groups_one_by_one(batch_of_groups):
    config = SwapConfig(objective="step_only", process_weight=1.0)
    batch = StepBatch.from_traces(batch_of_groups)
    normalised = step_credit(batch, coefficients(config)).normalised
    process = process_advantages(normalised, batch.step_ends, batch.step_mask, 70)
    for rows, group in zip(process, batch_of_groups, strict=True):
        for row, alone in zip(rows, swap_advantages(group, config), strict=True):
            torch.testing.assert_close(row[: len(alone)], alone, rtol=0, atol=1e-9)


# Gains of 1, 0, -1 and of 2: mean 1/2, squares 1/4, 1/4, 9/4, 9/4, so the unbiased variance is 5/3.
# The median of the lengths is 20, so P = 1/2 for the longer one. The wrong response has scores that
# must not count.
LONG = StepTrace(30, True, [-3.0, -2.0, -2.0, -3.0], [4, 9, 19])
SHORT = StepTrace(10, True, [-3.0, -1.0], [7])
WRONG = StepTrace(40, False, [0.0, 50.0], [7])
GROUP = [LONG, SHORT, WRONG]
HALF = SwapConfig(tau="0.5sd")


def halved_weights(gains, tau):
    """P w of the longer response, of which P is 1/2."""
    powers = [math.exp(-gain / tau) for gain in gains]
    return pytest.approx([power / sum(powers) / 2 for power in powers])


def penalties_of_longer(group, config):
    return credit_of(group, config).penalties[0, 0].tolist()


def test_weights_in_deviations_by_hand():
    deviation = math.sqrt(5 / 3)
    found = penalties_of_longer(GROUP, HALF)
    assert found == halved_weights([1, 0, -1], deviation / 2)
    assert found == pytest.approx([0.0179, 0.0845, 0.3976], abs=1e-4)
    in_nats = swap_advantages(GROUP, SwapConfig(tau=deviation / 2))
    for ours, theirs in zip(swap_advantages(GROUP, HALF), in_nats, strict=True):
        assert torch.allclose(ours, theirs)


def test_weights_from_monotone_gains_by_hand():
    # Delta is 1, 0, 0 and 2: mean 3/4, squares 1/16, 9/16, 9/16, 25/16, unbiased variance 11/12.
    # The last step of the longer one lost a nat, and pays no more than the idle one before it.
    found = penalties_of_longer(GROUP, HALF.replaced(weights_from="monotone"))
    assert found == halved_weights([1, 0, 0], math.sqrt(11 / 12) / 2)


def test_gains_without_a_spread_are_penalised_evenly():
    alike = [StepTrace(30, True, [-1, -1, -1], [4, 9]), StepTrace(10, True, [-1, -1], [7])]
    assert penalties_of_longer(alike, HALF) == [0.25, 0.25]
    one = StepBatch.from_traces([[StepTrace(30, True, [-1.0, 0.0], [4]), WRONG]])
    tau = step_tau(one.answer_logprobs.diff(dim=-1), one.step_mask, coefficients(HALF))
    assert tau.flatten().tolist() == [math.inf]


def test_noise_is_not_blown_up_in_deviations():
    noise = []
    for trace in GROUP:
        scores = [0.001 * score for score in trace.answer_logprobs]
        noise.append(replace(trace, answer_logprobs=scores))
    found = penalties_of_longer(noise, HALF.replaced(step_noise=0.02))
    assert found == halved_weights([0.001, 0, -0.001], 0.01)


def test_distances_from_uniform_by_hand():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    penalties = torch.tensor([[0.4, 0, 0, 0.4], [0.1, 0.1, 0, 0], [3.0, 0, 0, 0]]).double()
    # Half of the first one's penalty is not where uniform weights put it; a single step has no
    # choice.
    assert distances_from_uniform(penalties, mask).tolist() == pytest.approx([0.5, 0.0])
    assert distances_from_uniform(torch.zeros_like(penalties), mask).numel() == 0


def as_list_of_numpy(values):
    return list(np.array(values))


@pytest.mark.parametrize("held", [torch.tensor, np.array, tuple, as_list_of_numpy])
def test_traces_of_numbers_of_any_kind_have_the_same_advantages(held):
    traces = []
    for trace in (LONG, SHORT):
        scores = held(list(trace.answer_logprobs))
        ends = held(list(trace.step_ends))
        traces.append(StepTrace(np.int64(trace.length), np.bool_(True), scores, ends))
    found = swap_advantages([*traces, WRONG], SwapConfig())
    for one, other in zip(found, swap_advantages(GROUP, SwapConfig()), strict=True):
        assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"length": 9.5}, "length is 9.5"),
        ({"step_ends": [1.5]}, r"step_ends\[0\] is 1.5 \(float\); give whole numbers"),
        ({"answer_logprobs": ["-1"]}, r"answer_logprobs\[0\] is '-1' \(str\)"),
        ({"signals": {"needs": [1.0]}}, "signals has 'needs'; known are answer_logprobs, need,"),
        ({"signals": {}}, "step_reward is need, but the responses have no need"),
        ({"signals": {"need": [1.0]}}, r"response 0 of group 0: need of shape \(1,\) for 2 step"),
        ({"answer_logprobs": [-4, -1]}, r"answer_logprobs of shape \(2,\) for 2 step_ends"),
        ({"length": 5}, "step_ends .3, 5. must ascend within 0..4"),
        ({"length": -1, "step_ends": []}, "length is -1"),
    ],
)
def test_numbers_that_do_not_fit_are_named(values, message):
    fits = {
        "length": 9,
        "correct": True,
        "answer_logprobs": [-4, -1, -1],
        "step_ends": [3, 5],
        "signals": {"need": [1.0, 2.0]},
    }
    with pytest.raises(ValueError, match=message):
        swap_advantages([StepTrace(**{**fits, **values})], SwapConfig(step_reward="need"))
