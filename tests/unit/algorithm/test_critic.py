"""The regression on states against explicit sums; step costs by hand, and the gradient of a small
tabular policy.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap import StateCritic, StepTrace, SwapConfig, length_critic_advantages
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.critic import step_costs
from openrlhf_swap.errors import NonFiniteError

CONFIG = SwapConfig(objective="length_critic", process_weight=1.0)


def test_costs_by_hand():
    """10 tokens, steps end after 4 and 7: left 10, 6, 3; expected 8, 7, 1.

    delta: 4 + 7 - 8 = 3; 3 + 1 - 7 = -3 (it saved more than it took); 3 + 0 - 1 = 2.
    """
    left, predicted = torch.tensor([[10.0, 6, 3]]), torch.tensor([[8.0, 7, 1]])
    assert step_costs(left, predicted, 0.0).tolist() == [[3.0, -3.0, 2.0]]
    assert step_costs(left, predicted, 0.5).tolist() == [[2.0, -2.0, 2.0]]  # 2; -3 + 1; 3 - 1
    # What was left less what was predicted.
    assert step_costs(left, predicted, 1.0).tolist() == [[2.0, -1.0, 2.0]]


def slow_costs(length, ends, predicted, gae_lambda):
    """One step at a time."""
    starts = [0, *(end + 1 for end in ends)]
    tokens = [b - a for a, b in itertools.pairwise([*starts, length])]
    ahead = [*predicted[1:], 0.0]
    deltas = [t + after - before for t, after, before in zip(tokens, ahead, predicted, strict=True)]
    return [
        sum(gae_lambda**j * delta for j, delta in enumerate(deltas[k:])) for k in range(len(deltas))
    ]


@st.composite
def responses(draw):
    length = draw(st.integers(1, 30))
    ends = sorted(draw(st.sets(st.integers(0, length - 1), max_size=5)))
    predicted = draw(st.lists(st.floats(0, 50), min_size=len(ends) + 1, max_size=len(ends) + 1))
    return length, ends, predicted


@given(st.lists(responses(), min_size=1, max_size=4), st.sampled_from([0.0, 0.3, 0.9, 1.0]))
def test_costs_are_those_of_a_plain_loop(drawn, gae_lambda):
    groups = [
        [StepTrace(length, True, (), ends, {"states": np.zeros((len(ends) + 1, 1))})]
        for length, ends, _ in drawn
    ]
    batch = StepBatch.from_traces(groups)
    predicted = torch.zeros_like(batch.tokens_left)
    values = [value for *_, values in drawn for value in values]
    predicted[batch.state_mask] = torch.tensor(values, dtype=torch.float64)
    costs = step_costs(batch.tokens_left, predicted, gae_lambda)
    for row, (length, ends, values) in zip(costs[:, 0], drawn, strict=True):
        expected = slow_costs(length, ends, values, gae_lambda)
        assert row[: len(expected)].tolist() == pytest.approx(expected)
        assert not row[len(expected) :].any()


def trace(length, ends, correct=True, states=None):
    """A response whose states are all different, or those given."""
    if states is None:
        states = np.random.default_rng(length * 100 + len(ends)).normal(size=(len(ends) + 1, 3))
    return StepTrace(length, correct, (), ends, {"states": states})


@pytest.mark.parametrize(
    ("pays", "target", "expected"),
    [
        ("correct", "none", [[True, True, False], [False] * 3]),
        ("all", "none", [[True] * 3] * 2),
        # The first group's target is 6, the median of 4 and 8; the second group has none.
        ("correct", "group", [[False, True, False], [False] * 3]),
        ("all", "group", [[False, True, True], [False] * 3]),
    ],
)
def test_who_pays(pays, target, expected):
    groups = [
        [trace(4, [1]), trace(8, [2]), trace(9, [], correct=False)],
        [trace(3, [], correct=False)] * 3,
    ]
    config = CONFIG.replaced(outcome_weight=0.0, options={"pays": pays, "target": target})
    found = length_critic_advantages(groups, config, StateCritic())
    assert [[bool(row.any()) for row in rows] for rows in found] == expected


def slow_advantages(group, theta, gae_lambda, by_length):
    """Token by token; what is left is predicted by the mean of a group without a past."""
    left = [[t.length - end - 1 for end in (-1, *t.step_ends)] for t in group]
    mean = np.mean([value for row in left for value in row])
    costs = [
        slow_costs(t.length, t.step_ends, [mean] * len(row), gae_lambda)
        for t, row in zip(group, left, strict=True)
    ]
    unit = np.mean([t.length for t in group if t.correct])
    if not by_length:
        paid = [cost for t, row in zip(group, costs, strict=True) if t.correct for cost in row]
        unit = np.std(paid, ddof=1) + 1e-6
    rewards = [float(t.correct) for t in group]
    outcome = (rewards - np.mean(rewards)) / (np.std(rewards, ddof=1) + 1e-6)
    return [
        [
            o - theta * t.correct * row[sum(token > end for end in t.step_ends)] / unit
            for token in range(t.length)
        ]
        for t, row, o in zip(group, costs, outcome, strict=True)
    ]


@pytest.mark.parametrize("unit", ["deviation", "length"])
def test_advantages_of_a_group_token_by_token(unit):
    group = [trace(12, [3, 8]), trace(7, [2]), trace(9, [1, 2, 5], correct=False), trace(5, [])]
    config = CONFIG.replaced(process_weight=0.7, options={"gae_lambda": "0.8", "unit": unit})
    (found,) = length_critic_advantages([group], config, StateCritic())
    expected = slow_advantages(group, 0.7, 0.8, unit == "length")
    assert [row.tolist() for row in found] == [pytest.approx(row) for row in expected]


def test_with_a_weight_of_zero_it_is_grpo():
    groups = [[trace(12, [3, 8]), trace(7, [2], correct=False)], [trace(5, []), trace(6, [])]]
    config = CONFIG.replaced(process_weight=0.0)
    first, second = length_critic_advantages(groups, config, StateCritic())
    high = 0.5**0.5 / (1 + 1e-6 * 2**0.5)
    assert first[0].tolist() == pytest.approx([high] * 12)
    assert first[1].tolist() == pytest.approx([-high] * 7)
    assert not second[0].any() and not second[1].any()


def test_a_needed_step_is_free_and_a_redundant_one_pays():
    """States tell how many of three needed steps are left; in between, half of all steps are
    redundant.

    A step is 5 tokens, so 10 are expected for each needed one: it takes 5 and saves 10, a redundant
    one takes 5.
    """
    rng, groups, plans = np.random.default_rng(0), [], []
    for _ in range(200):
        plan, to_do = [], 3
        while to_do:
            plan.append(bool(rng.random() < 0.5))
            to_do -= plan[-1]
        states = 3.0 - np.cumsum([0, *plan])[:, None]
        ends = [5 * k + 4 for k in range(len(plan))]
        wrong = StepTrace(1, False, (), [], {"states": [[3.0]]})
        groups.append([StepTrace(5 * len(plan), True, (), ends, {"states": states}), wrong])
        plans.append(plan)
    config = CONFIG.replaced(options={"gae_lambda": "0", "unit": "deviation"})
    found = length_critic_advantages(groups, config, StateCritic())
    paid = {True: [], False: []}
    for (right, _), plan in zip(found, plans, strict=True):
        steps = (right - right[-1]).view(-1, 5)[:, 0]  # without A_out, which all of its tokens have
        for needed, value in zip(plan, steps.tolist(), strict=True):
            paid[needed].append(value)
    assert np.mean(paid[True]) > np.mean(paid[False]) + 1
    assert np.mean([value < np.mean(paid[True]) - 0.5 for value in paid[False]]) > 0.9


@pytest.mark.parametrize(
    ("traces", "message"),
    [
        ([[trace(5, [1], states=np.zeros((3, 1)))]], r"states of shape \(3, 1\) for 1 step_ends"),
        ([[StepTrace(5, True, [], [])]], "the responses have no states"),
        ([[trace(5, []), StepTrace(5, False)]], r"response 1 of group 0: states of shape \(0,\)"),
    ],
)
def test_responses_that_do_not_fit_are_named(traces, message):
    with pytest.raises(ValueError, match=message):
        length_critic_advantages(traces, CONFIG, StateCritic())


# A tabular policy: three moves, each 0 or 1 with a probability of its own in each of the states
# that it can be in. A move of 1 takes two tokens more, and whether the answer is right depends on
# all moves.
MOVES = list(itertools.product((0, 1), repeat=3))
LOGITS = torch.tensor([0.3, -0.4, 0.8, 0.1, -0.7, 0.5, -0.2], dtype=torch.float64)
PREFIXES = [prefix for size in range(3) for prefix in itertools.product((0, 1), repeat=size)]
NODES = {prefix: node for node, prefix in enumerate(PREFIXES)}


def chance_of(move, prefix):
    """The probability of a move behind these moves."""
    one = float(LOGITS[NODES[prefix]].sigmoid())
    return one if move else 1 - one


def gradient_moments(cost):
    """Mean and total variance of sum_t grad log pi(a_t) cost(moves, t) over all eight responses."""
    mean, square = torch.zeros(7, dtype=torch.float64), 0.0
    for moves in MOVES:
        chance, gradient = 1.0, torch.zeros(7, dtype=torch.float64)
        for step, move in enumerate(moves):
            prefix = moves[:step]
            chance = chance * chance_of(move, prefix)
            gradient[NODES[prefix]] = (move - chance_of(1, prefix)) * cost(moves, step)
        mean, square = mean + chance * gradient, square + chance * gradient.square().sum()
    return mean, float(square - mean.square().sum())


def gradient_of(value):
    """The gradient of the mean of `value` over all responses, by automatic differentiation."""
    logits, total = LOGITS.clone().requires_grad_(), torch.zeros((), dtype=torch.float64)
    for moves in MOVES:
        ones = torch.stack([logits[NODES[moves[:step]]].sigmoid() for step in range(3)])
        total = total + torch.where(torch.tensor(moves) == 1, ones, 1 - ones).prod() * value(moves)
    return torch.autograd.grad(total, logits)[0]


def left(moves, step):
    return float(sum(1 + 2 * move for move in moves[step:]))


def expected_left(prefix):
    """The mean of what is left behind these moves."""
    total = 0.0
    for moves in MOVES:
        if moves[: len(prefix)] == prefix:
            later = range(len(prefix), 3)
            chance = math.prod(chance_of(moves[step], moves[:step]) for step in later)
            total += chance * left(moves, len(prefix))
    return total


def costs_of(moves, values, gae_lambda):
    """`step_costs` of these moves, with a value at each state."""
    to_come = torch.tensor([[left(moves, step) for step in range(3)]], dtype=torch.float64)
    predicted = torch.tensor([[values(moves[:step]) for step in range(3)]], dtype=torch.float64)
    return step_costs(to_come, predicted, gae_lambda)[0].tolist()


def test_a_baseline_of_the_state_leaves_the_mean_gradient_alone_and_takes_variance_off():
    plain, noisy = gradient_moments(lambda moves, step: left(moves, step))
    for values, better in ((expected_left, True), (lambda prefix: 17.0 * len(prefix) - 5, False)):
        cost = lambda moves, step, v=values: costs_of(moves, v, 1.0)[step]  # noqa: E731
        mean, variance = gradient_moments(cost)
        torch.testing.assert_close(mean, plain, rtol=0, atol=1e-12)
        assert (variance < noisy) is better
    torch.testing.assert_close(plain, gradient_of(lambda moves: left(moves, 0)))


def test_with_the_true_values_alone_any_lambda_has_the_same_mean_gradient():
    plain, _ = gradient_moments(lambda moves, step: left(moves, step))
    exact, _ = gradient_moments(lambda moves, step: costs_of(moves, expected_left, 0.5)[step])
    torch.testing.assert_close(exact, plain, rtol=0, atol=1e-12)
    fours = lambda prefix: 4.0 * sum(prefix)  # noqa: E731
    wrong, _ = gradient_moments(lambda moves, step: costs_of(moves, fours, 0.5)[step])
    assert (wrong - plain).abs().max() > 0.1


def test_where_only_correct_responses_pay_it_is_for_what_exceeds_the_predicted_length():
    """The mean gradient is that of E[c L], less what being right earns: the predicted length.

    sum_t E[grad log pi(a_t) c (left_t - V_t)] = grad E[c L] - sum_t E[grad log pi(a_t) c (spent_t +
    V_t)].
    """
    right = {moves: float(sum(moves) >= 2) for moves in MOVES}
    costs = {moves: costs_of(moves, expected_left, 1.0) for moves in MOVES}
    whole = {moves: left(moves, 0) for moves in MOVES}
    found, _ = gradient_moments(lambda moves, step: right[moves] * costs[moves][step])
    of_right_length, _ = gradient_moments(lambda moves, step: right[moves] * whole[moves])
    credit, _ = gradient_moments(
        lambda moves, step: right[moves] * (whole[moves] - costs[moves][step])
    )
    torch.testing.assert_close(found, of_right_length - credit, rtol=0, atol=1e-12)
    exact = gradient_of(lambda moves: right[moves] * whole[moves])
    torch.testing.assert_close(of_right_length, exact)
    assert credit.abs().max() > 0.1


def made_up(groups=7, rows=11, size=5, seed=0, noise=0.5):
    """States, returns that depend on them, and the group of each row."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(groups * rows, size, generator=generator, dtype=torch.float64) * 3 + 1
    weights = torch.arange(1.0, size + 1, dtype=torch.float64)
    noises = torch.randn(len(states), generator=generator, dtype=torch.float64)
    returns = states @ weights + 20 + noise * noises
    return states, returns, torch.arange(groups).repeat_interleave(rows)


def slow_predictions(batches, ridge, folds, decay):
    """For the last batch, row by row: a weighted ridge regression on all other rows."""
    *earlier, last = [[np.asarray(part) for part in batch] for batch in batches]
    states, returns, groups = last
    found = np.empty(len(returns))
    for row in range(len(returns)):
        others = groups % folds != groups[row] % folds
        x, y = [states[others]], [returns[others]]
        weights = [np.ones(others.sum())]
        for age, (old_states, old_returns, _) in enumerate(reversed(earlier), 1):
            x, y = [*x, old_states], [*y, old_returns]
            weights.append(np.full(len(old_returns), decay**age))
        x, y, w = np.concatenate(x), np.concatenate(y), np.concatenate(weights)
        mean, target = np.average(x, axis=0, weights=w), np.average(y, weights=w)
        scale = np.sqrt(np.average((x - mean) ** 2, axis=0, weights=w))
        z = (x - mean) / scale
        solution = np.linalg.solve(
            z.T @ (w[:, None] * z) + ridge * np.eye(z.shape[1]), z.T @ (w * (y - target))
        )
        found[row] = target + (states[row] - mean) / scale @ solution
    return found


def test_it_predicts_as_an_explicit_ridge_regression_on_others_and_faded_earlier_batches():
    critic = StateCritic(decay=0.5, ridge=3.0, folds=3)
    batches = [made_up(seed=seed) for seed in range(3)]
    for number, batch in enumerate(batches, 1):
        prediction = critic.predict(*batch)
        expected = slow_predictions(batches[:number], ridge=3.0, folds=3, decay=0.5)
        np.testing.assert_allclose(prediction.values.numpy(), expected, rtol=1e-9)
        assert prediction.solved


def test_a_group_whose_returns_only_its_own_states_could_tell_is_not_predicted():
    """Each group's return is a number of its own: whoever had seen the group would know it."""
    own = torch.eye(8, dtype=torch.float64).repeat_interleave(6, 0)
    groups = torch.arange(8).repeat_interleave(6)
    returns = torch.tensor([5.0, -9.0, 2.0, 7.0, -4.0, 8.0, -6.0, 1.0], dtype=torch.float64)[groups]
    leaky = np.linalg.lstsq(own.numpy(), returns.numpy(), rcond=None)[0]
    assert np.abs(own.numpy() @ leaky - returns.numpy()).max() < 1e-9  # what a leak would look like
    assert StateCritic(ridge=1e-6).predict(own, returns, groups).r2 < 0.05


def test_it_goes_on_from_a_checkpoint():
    batches = [made_up(seed=seed) for seed in range(3)]
    without_break, first, second = StateCritic(), StateCritic(), StateCritic()
    assert first.state_dict() == {}
    for batch in batches[:2]:
        without_break.predict(*batch)
        first.predict(*batch)
    second.load_state_dict(first.state_dict())
    third = without_break.predict(*batches[2]), second.predict(*batches[2])
    assert torch.equal(third[0].values, third[1].values)


@pytest.mark.parametrize(("place", "name"), [((4, 2), "hidden state"), ((4,), "return")])
def test_what_is_not_finite_is_named(place, name):
    states, returns, groups = made_up()
    (states if len(place) == 2 else returns)[place] = torch.nan
    with pytest.raises(NonFiniteError, match=f"row 4 of 77: its {name} is not finite"):
        StateCritic().predict(states, returns, groups)
