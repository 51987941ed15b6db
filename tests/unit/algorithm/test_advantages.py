import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.slow_advantages import EPS, slow_advantages

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.algorithm.advantages import (
    monotone_gains,
    outcome_advantages,
    penalty_masses,
    penalty_weights,
    process_advantages,
    standardise,
    step_credit,
    step_tau,
    sum_to_come,
    target_lengths,
)
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.errors import NonFiniteError
from openrlhf_swap.objectives.registry import ABLATION, coefficients
from openrlhf_swap.runs.metrics import distances_from_uniform

# The worked group: three correct responses and a wrong one (tau = lambda = beta = 1, theta = 0.3).
WORKED = [
    StepTrace(1400, True, [-4, -3, -3.2, -1, -1.1], [349, 699, 1049, 1389]),
    StepTrace(700, True, [-4, -3.5, -0.5], [349, 689]),
    StepTrace(1050, True, [-4, -2, -2.5, -2.2], [349, 699, 1039]),
    StepTrace(400, False, [], []),
]


SLOW_ARGUMENTS = {
    "swap": {},
    "grpo": {"theta": 0.0},
    "outcome_only": {"theta": 0.0, "shaped": True},
    "step_only": {"beta": 0.0},
    "no_penalty": {"lam": 0.0},
    "static_penalty": {"lam": 0.0, "static": 0.1},
    "uniform_penalty": {"tau": math.inf},
}
SETTINGS = [({"objective": name}, SLOW_ARGUMENTS[name]) for name in ABLATION]
SETTINGS += [({"step_noise": noise}, {"noise": noise}) for noise in (0.02, 3.0)]
SETTINGS += [
    (
        {"step_price": price, "weights_from": source, "step_noise": noise},
        {"by_weights": price == "weights", "monotone": source == "monotone", "noise": noise},
    )
    for price, source in (("steps", "monotone"), ("weights", "local"), ("weights", "monotone"))
    for noise in (0.0, 3.0)
]
for gamma in (0.0, 0.5, 1.0):
    SETTINGS.append(({"step_discount": gamma}, {"gamma": gamma}))
    needs = {"step_reward": "need", "step_discount": gamma}
    SETTINGS.append((needs, {"need": True, "gamma": gamma}))


@st.composite
def traces(draw):
    steps = draw(st.integers(0, 6))
    gaps = draw(st.lists(st.integers(1, 9), min_size=steps, max_size=steps))
    ends = [sum(gaps[: k + 1]) - 1 for k in range(steps)]
    scores = draw(st.lists(st.floats(-8, 0), min_size=steps + 1, max_size=steps + 1))
    tail = draw(st.integers(1, 9))
    need = draw(st.lists(st.floats(-0.1, 4), min_size=steps, max_size=steps))
    length = (ends[-1] + 1 if ends else 0) + tail
    return StepTrace(length, draw(st.booleans()), scores, ends, {"need": need})


groups = st.lists(traces(), min_size=2, max_size=6)
few = settings(max_examples=40)  # a group is slow to draw


def signals(group, config):
    return step_credit(StepBatch.from_traces([group]), coefficients(config))


def test_worked_group_by_hand():
    # Target: median(1400, 700, 1050) = 1050; only the first response pays, P = 350/1050 = 1/3.
    # g = 1, -.2, 2.2, -.1; exp(-g) = .367879, 1.221403, .110803, 1.105171; sum 2.805256.
    exponentials = [math.exp(-1), math.exp(0.2), math.exp(-2.2), math.exp(0.1)]
    penalties = [e / sum(exponentials) / 3 for e in exponentials]
    gains = [1, 0, 2, 0]
    rewards = [gain - paid for gain, paid in zip(gains, penalties, strict=True)]
    rewards += [0.5, 3.0, 2.0, 0.0, 0.0]
    mean, std = statistics.fmean(rewards), statistics.stdev(rewards)
    assert (round(mean, 6), round(std, 6)) == (0.907407, 1.158653)
    z = [(r - mean) / (std + EPS) for r in rewards]
    a_out = 0.25 / (0.5 + EPS)  # outcomes 1, 1, 1, 0: mean .75, unbiased std .5
    expected = [
        [a_out + 0.3 * sum(z[k:4]) for k in range(4)],
        [a_out + 0.3 * sum(z[k:6]) for k in (4, 5)],
        [a_out + 0.3 * sum(z[k:9]) for k in (6, 7, 8)],
    ]
    advantages = swap_advantages(WORKED, SwapConfig())
    for trace, row, values in zip(WORKED, advantages, expected, strict=False):
        assert [row[end].item() for end in trace.step_ends] == pytest.approx(values, abs=1e-9)
        assert row[-1].item() == pytest.approx(a_out, abs=1e-9)
    assert advantages[3].tolist() == pytest.approx([-0.75 / (0.5 + EPS)] * 400, abs=1e-9)
    # To the four digits of the published table.
    table = [[0.2507, 0.2380, 0.5105, 0.2311], [0.9363, 1.0418], [0.3130, 0.0301, 0.2651]]
    for row, trace, values in zip(advantages, WORKED, table, strict=False):
        assert [round(row[end].item(), 4) for end in trace.step_ends] == values


@pytest.mark.parametrize(("settings_", "arguments"), SETTINGS)
@given(group=groups)
@few
def test_agrees_with_the_slow_version(settings_, arguments, group):
    slow = slow_advantages(group, **arguments)
    for row, expected in zip(swap_advantages(group, SwapConfig(**settings_)), slow, strict=True):
        assert row.tolist() == pytest.approx(expected, rel=0, abs=1e-9)


@given(groups, st.floats(0.05, 20), st.sampled_from(["local", "monotone"]))
@few
def test_shared_by_weights_the_price_of_a_response_stays_the_same(group, tau, source):
    config = SwapConfig(tau=tau, weights_from=source)
    alike, shared = (
        signals(group, config.replaced(step_price=price)) for price in ("steps", "weights")
    )
    torch.testing.assert_close(shared.charges.sum(-1), alike.charges.sum(-1), rtol=0, atol=1e-9)
    torch.testing.assert_close(
        shared.normalised.sum(-1), alike.normalised.sum(-1), rtol=0, atol=1e-6
    )


def test_prices_by_hand():
    # Both are correct and as long as the target, so nobody pays: rewards 2, 0 and 1, mean 1,
    # unbiased deviation 1.
    group = [StepTrace(8, True, [-3, -1, -1], [2, 5]), StepTrace(8, True, [-3, -2], [2])]
    eps = 1 + EPS
    # g is 2 and 0, so w = e^-2/(e^-2 + 1) and 1/(e^-2 + 1): a step without a gain pays 2 * .88 of
    # the response's 2, the other the rest; alone, a step pays its price.
    row, other = swap_advantages(group, SwapConfig(step_price="weights"))
    assert row[[0, 3, 6]].tolist() == pytest.approx([0, -0.3 * 2 / (math.exp(-2) + 1), 0], abs=1e-5)
    assert other.tolist() == pytest.approx([0.0] * 8, abs=1e-5)
    # The second step of the first response gained nothing: dropping it is worth theta times its
    # price.
    row, other = swap_advantages(group, SwapConfig())
    assert row[[0, 3, 6]].tolist() == pytest.approx([0.3 * (1 - 1) / eps, 0.3 * -1 / eps, 0])
    assert other[0].item() == pytest.approx(0)
    found = signals(group, SwapConfig())
    assert (found.deviation.item(), found.price.item()) == pytest.approx((1, 1 / eps))


def test_a_step_pays_its_own_bill_by_hand():
    """Rewards 2, 0 and 1 as above: r~ is 1, -1 and 0. Gamma says how far they reach."""
    group = [StepTrace(8, True, [-3, -1, -1], [2, 5]), StepTrace(8, True, [-3, -2], [2])]
    for gamma, expected in ((1.0, [0, -1, 0]), (0.5, [1 - 0.5, -1, 0]), (0.0, [1, -1, 0])):
        row, other = swap_advantages(group, SwapConfig(step_discount=gamma, process_weight=1.0))
        assert row[[0, 3, 6]].tolist() == pytest.approx(expected, abs=1e-5)
        assert other.tolist() == pytest.approx([0.0] * 8, abs=1e-5)
    three = torch.tensor([[4.0, 2.0, 1.0]])
    assert sum_to_come(three, 0.5).tolist() == [[4 + 1 + 0.25, 2 + 0.5, 1]]
    assert torch.equal(sum_to_come(three, 0.0), three)


@given(groups)
@few
def test_the_papers_credit_is_a_plain_sum_bit_for_bit(group):
    normalised = signals(group, SwapConfig()).normalised
    expected = normalised.flip(-1).cumsum(-1).flip(-1)
    assert torch.equal(sum_to_come(normalised, SwapConfig().step_discount), expected)


def test_a_step_earns_what_the_rest_needs_of_it_by_hand():
    """Gains 2, 0 and 1 nats, needs 0, 3 and 1 nats: rewards 2, 3 and 2, whoever is too long.

    Their mean is 7/3, their unbiased deviation sqrt(1/3): r~ is -.577, 1.155, -.577.
    """
    group = [
        StepTrace(18, True, [-3, -1, -1], [2, 5], {"need": [0, 3]}),
        StepTrace(8, True, [-3, -2], [2], {"need": torch.tensor([1.0])}),
        StepTrace(9, False, (), ()),
    ]
    config = SwapConfig(
        objective="step_only", step_reward="need", step_discount=0.0, process_weight=1.0
    )
    long, short, wrong = swap_advantages(group, config)
    low, high = -1 / math.sqrt(3), 2 / math.sqrt(3)
    assert long[[0, 3, 6]].tolist() == pytest.approx([low, high, 0], abs=1e-5)
    assert short[[0, 3]].tolist() == pytest.approx([low, 0], abs=1e-5)
    assert not wrong.any()
    found = signals(group, config)
    assert not found.penalties.any() and not found.penalty_mass.any()
    # Neither tau nor lambda matters.
    other = swap_advantages(group, config.replaced(tau=0.1, length_coef=9.0))
    assert all(torch.equal(a, b) for a, b in zip(other, (long, short, wrong), strict=True))


def test_a_step_whose_need_was_not_read_neither_earns_nor_pays_by_hand():
    """The second step's reward is left out: 2 and 4 remain, of mean 3 and deviation sqrt(2)."""
    group = [
        StepTrace(9, True, [-3, -1, -1], [2, 5], {"need": [0, math.nan]}),
        StepTrace(4, True, [-3, -2], [2], {"need": [3.0]}),
    ]
    config = SwapConfig(objective="step_only", step_reward="need", process_weight=1.0)
    side = math.sqrt(0.5)
    for discount in (0.0, 1.0):
        long, short = swap_advantages(group, config.replaced(step_discount=discount))
        assert long.tolist() == pytest.approx([-side] * 3 + [0] * 6, abs=1e-5)
        assert short.tolist() == pytest.approx([side] * 3 + [0], abs=1e-5)


def test_noise_of_the_scores_stays_small():
    # Gains of 3e-4 nats, which are noise: rewards .0003, 0 and 0; the paper's normalisation makes
    # them +-1.15.
    group = [StepTrace(8, True, [-1, -0.9997, -0.9997], [2, 5]), StepTrace(8, True, [-1, -1], [2])]
    as_published = swap_advantages(group, SwapConfig())[0].abs().max()
    with_floor = swap_advantages(group, SwapConfig(step_noise=0.02))[0].abs().max()
    # Mean .0001, deviation .000173205; the second step: theta (0 - .0001)/(.000173205 + 1e-6), or
    # over .020001.
    assert as_published.item() == pytest.approx(0.3 * 0.0001 / 0.000174205, rel=1e-5)
    assert with_floor.item() == pytest.approx(0.3 * 0.0001 / 0.020001, rel=1e-5)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=20), st.floats(0.01, 100))
def test_weights_sum_to_one_and_follow_the_gains(gains, tau):
    gains = torch.tensor(gains, dtype=torch.float64)
    weights = penalty_weights(gains, torch.ones_like(gains, dtype=torch.bool), tau)
    assert weights.sum().item() == pytest.approx(1)
    order = gains.argsort()
    assert (weights[order].diff() <= 1e-12).all()


@given(st.lists(st.floats(-50, 0), min_size=1, max_size=20))
def test_monotone_gains_add_up_to_the_best_improvement(scores):
    logprobs = torch.tensor(scores, dtype=torch.float64)
    gains = monotone_gains(logprobs, torch.ones(len(scores) - 1, dtype=torch.bool))
    assert (gains >= 0).all()
    assert gains.sum().item() == pytest.approx(max(scores) - scores[0])


@given(groups)
@few
def test_only_correct_responses_over_the_target_pay(group):
    lengths = torch.tensor([[t.length for t in group]])
    correct = torch.tensor([[t.correct for t in group]])
    masses = penalty_masses(lengths, correct, 1.0)[0]
    target = target_lengths(lengths, correct).item()
    for trace, mass in zip(group, masses.tolist(), strict=True):
        assert (mass > 0) == (trace.correct and trace.length > target)


@given(groups, st.floats(0.1, 3))
@few
def test_process_term_stays_inside_the_steps_of_correct_responses(group, theta):
    with_process = swap_advantages(group, SwapConfig(process_weight=theta))
    without = swap_advantages(group, SwapConfig(objective="grpo"))
    for trace, row, outcome in zip(group, with_process, without, strict=True):
        if not trace.correct or not trace.step_ends:
            assert torch.equal(row, outcome)
            continue
        assert torch.equal(row[trace.step_ends[-1] + 1 :], outcome[trace.step_ends[-1] + 1 :])
        starts = [0, *(end + 1 for end in trace.step_ends[:-1])]
        for start, end in zip(starts, trace.step_ends, strict=True):
            assert (row[start : end + 1] == row[end]).all()


@given(groups, st.randoms())
@few
def test_permuting_a_group_permutes_the_result(group, random):
    order = list(range(len(group)))
    random.shuffle(order)
    straight = swap_advantages(group, SwapConfig())
    permuted = swap_advantages([group[i] for i in order], SwapConfig())
    for position, i in enumerate(order):
        torch.testing.assert_close(permuted[position], straight[i], rtol=0, atol=1e-9)


@given(groups)
@few
def test_reductions_are_exact(group):
    def same(left, right):
        pairs = zip(swap_advantages(group, left), swap_advantages(group, right), strict=True)
        return all(torch.equal(a, b) for a, b in pairs)

    assert same(SwapConfig(length_coef=0.0), SwapConfig(objective="no_penalty"))
    assert same(SwapConfig(tau=math.inf), SwapConfig(objective="uniform_penalty"))
    assert same(SwapConfig(process_weight=0.0), SwapConfig(objective="grpo"))
    assert same(SwapConfig(outcome_weight=0.0), SwapConfig(objective="step_only"))


@given(
    st.lists(traces(), min_size=1, max_size=5),
    st.sampled_from(list(ABLATION)),
    st.floats(1e-300, 1e300),
    st.sampled_from(["steps", "weights"]),
)
@few
def test_finite_in_finite_out(group, objective, tau, price):
    for row in swap_advantages(group, SwapConfig(objective=objective, tau=tau, step_price=price)):
        assert row.isfinite().all()


def test_a_constant_group_gives_zero_not_noise():
    # Seven times 0.95 in float32 has a standard deviation of 6e-8.
    assert not outcome_advantages(torch.full((1, 7), 0.95), EPS).any()
    same = [StepTrace(10, True, [-1.0, -0.95], [5])] * 7
    assert not torch.stack(swap_advantages(same, SwapConfig())).any()


def test_values_are_standardised_by_hand():
    """Of 1, 2, 6 (mean 3): deviations sqrt(7) or, without the correction, sqrt(14/3)."""
    values = torch.tensor([[1.0, 2.0, 99.0, 6.0], [5.0, 5.0, 5.0, 0.0], [7.0, 0.0, 0.0, 0.0]])
    mask = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 0], [1, 0, 0, 0]]).bool()
    for unbiased, deviation in ((True, math.sqrt(7)), (False, math.sqrt(14 / 3))):
        found = standardise(values, mask, 0.1, unbiased)
        expected = [-2 / (deviation + 0.1), -1 / (deviation + 0.1), 0, 3 / (deviation + 0.1)]
        assert found[0].tolist() == pytest.approx(expected)
        assert not found[1:].any() and found.dtype == torch.float64


def test_target_is_the_mean_of_the_middle_two():
    lengths, correct = torch.tensor([[10, 40, 20, 30, 999]]), torch.tensor([[True] * 4 + [False]])
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
def test_a_batch_of_groups_equals_the_groups_one_by_one(groups):
    config, plain = SwapConfig(), SwapConfig(objective="grpo")
    batch = StepBatch.from_traces(groups)
    normalised = step_credit(batch, coefficients(config)).normalised
    process = process_advantages(normalised, batch.step_ends, batch.step_mask, 70)
    for rows, group in zip(process, groups, strict=True):
        pairs = zip(swap_advantages(group, config), swap_advantages(group, plain), strict=True)
        for row, (full, outcome) in zip(rows, pairs, strict=True):
            expected = (full - outcome) / config.process_weight
            torch.testing.assert_close(row[: len(full)], expected, rtol=0, atol=1e-9)


# Gains of 1, 0, -1 and of 2: mean 1/2, squares 1/4, 1/4, 9/4, 9/4, so the unbiased variance is 5/3.
# The median of the lengths is 20, so P = 1/2 for the longer one. The wrong response has scores that
# must not count.
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


def test_weights_in_deviations_by_hand():
    found = signals(GROUP, HALF)
    expected = [weight / 2 for weight in weights_of([1, 0, -1], math.sqrt(5 / 3) / 2)]
    assert found.penalties[0, 0].tolist() == pytest.approx(expected)
    assert expected == pytest.approx([0.0179, 0.0845, 0.3976], abs=1e-4)
    in_nats = SwapConfig(tau=math.sqrt(5 / 3) / 2)
    pairs = zip(swap_advantages(GROUP, HALF), swap_advantages(GROUP, in_nats), strict=True)
    assert all(torch.allclose(ours, theirs) for ours, theirs in pairs)


def test_weights_from_monotone_gains_by_hand():
    # Delta is 1, 0, 0 and 2: mean 3/4, squares 1/16, 9/16, 9/16, 25/16, unbiased variance 11/12.
    # The last step of the longer one lost a nat, and pays no more than the idle one before it.
    found = signals(GROUP, HALF.replaced(weights_from="monotone"))
    expected = [weight / 2 for weight in weights_of([1, 0, 0], math.sqrt(11 / 12) / 2)]
    assert found.penalties[0, 0].tolist() == pytest.approx(expected)


def test_gains_without_a_spread_are_penalised_evenly_and_noise_is_not_blown_up():
    alike = [StepTrace(30, True, [-1, -1, -1], [4, 9]), StepTrace(10, True, [-1, -1], [7])]
    assert signals(alike, HALF).penalties[0, 0].tolist() == [0.25, 0.25]
    one = [StepTrace(30, True, [-1.0, 0.0], [4]), WRONG]
    batch = StepBatch.from_traces([one])
    gains = batch.answer_logprobs.diff(dim=-1)
    assert step_tau(gains, batch.step_mask, coefficients(HALF)).flatten().tolist() == [math.inf]
    noise = [stretched(trace, 0.001) for trace in GROUP]
    floored = signals(noise, HALF.replaced(step_noise=0.02)).penalties[0, 0]
    assert floored.tolist() == pytest.approx([w / 2 for w in weights_of([0.001, 0, -0.001], 0.01)])


def test_distances_from_uniform_by_hand():
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]]).bool()
    penalties = torch.tensor([[0.4, 0, 0, 0.4], [0.1, 0.1, 0, 0], [3.0, 0, 0, 0]]).double()
    # Half of the first one's penalty is not where uniform weights put it; a single step has no
    # choice.
    assert distances_from_uniform(penalties, mask).tolist() == pytest.approx([0.5, 0.0])
    assert distances_from_uniform(torch.zeros_like(penalties), mask).numel() == 0


@pytest.mark.parametrize("held", [torch.tensor, np.array, tuple, lambda each: list(np.array(each))])
def test_traces_of_numbers_of_any_kind_have_the_same_advantages(held):
    def copied(trace):
        ends = held(list(trace.step_ends)) if trace.step_ends else ()
        scores = held(list(trace.answer_logprobs)) if trace.answer_logprobs else ()
        return StepTrace(np.int64(trace.length), np.bool_(trace.correct), scores, ends)

    known = swap_advantages(GROUP, SwapConfig())
    found = swap_advantages([copied(trace) for trace in GROUP], SwapConfig())
    for one, other in zip(found, known, strict=True):
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
    fits = {"length": 9, "answer_logprobs": [-4, -1, -1], "step_ends": [3, 5]}
    with pytest.raises(ValueError, match=message):
        trace = StepTrace(correct=True, **{**fits, "signals": {"need": [1.0, 2.0]}, **values})
        swap_advantages([trace], SwapConfig(step_reward="need"))
