"""The ridge regression on states: against explicit sums over rows, and whether a row helps to predict itself."""

import numpy as np
import pytest
import torch

from openrlhf_swap import StateCritic
from openrlhf_swap.errors import NonFiniteError


def made_up(groups=7, rows=11, size=5, seed=0, noise=0.5):
    """States, returns that depend on them, and the group of each row."""
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(groups * rows, size, generator=generator, dtype=torch.float64) * 3 + 1
    weights = torch.arange(1.0, size + 1, dtype=torch.float64)
    returns = states @ weights + 20 + noise * torch.randn(len(states), generator=generator, dtype=torch.float64)
    return states, returns, torch.arange(groups).repeat_interleave(rows)


def slow_predictions(batches, ridge, folds, decay):
    """For the last batch, row by row: an explicit weighted ridge regression on all rows of other parts and batches."""
    *earlier, (states, returns, groups) = [[np.asarray(part) for part in batch] for batch in batches]
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
        solution = np.linalg.solve(z.T @ (w[:, None] * z) + ridge * np.eye(z.shape[1]), z.T @ (w * (y - target)))
        found[row] = target + (states[row] - mean) / scale @ solution
    return found


def test_it_predicts_as_an_explicit_ridge_regression_on_the_other_groups_and_the_faded_earlier_batches():
    critic = StateCritic(decay=0.5, ridge=3.0, folds=3)
    batches = [made_up(seed=seed) for seed in range(3)]
    for number, batch in enumerate(batches, 1):
        prediction = critic.predict(*batch)
        expected = slow_predictions(batches[:number], ridge=3.0, folds=3, decay=0.5)
        np.testing.assert_allclose(prediction.values.numpy(), expected, rtol=1e-9)
        assert prediction.solved


def test_a_group_whose_returns_only_its_own_states_could_tell_is_not_predicted():
    """Each group has a number of its own that is its return: whoever had seen the group would know all of it."""
    own = torch.eye(8, dtype=torch.float64).repeat_interleave(6, 0)
    groups = torch.arange(8).repeat_interleave(6)
    returns = torch.tensor([5.0, -9.0, 2.0, 7.0, -4.0, 8.0, -6.0, 1.0], dtype=torch.float64)[groups]
    leaky = np.linalg.lstsq(own.numpy(), returns.numpy(), rcond=None)[0]
    assert np.abs(own.numpy() @ leaky - returns.numpy()).max() < 1e-9  # what a leak would look like
    assert StateCritic(ridge=1e-6).predict(own, returns, groups).r2 < 0.05


def test_changing_a_groups_returns_does_not_change_its_own_predictions():
    states, returns, groups = made_up()
    changed = torch.where(groups == 2, returns + 1000, returns)
    before, after = (StateCritic().predict(states, values, groups).values for values in (returns, changed))
    assert torch.equal(before[groups == 2], after[groups == 2])
    assert not torch.equal(before[groups == 3], after[groups == 3])


def test_a_number_that_never_changes_is_left_out():
    states, returns, groups = made_up()
    constant = torch.cat([states, torch.full((len(states), 1), 1e4, dtype=torch.float64)], -1)
    expected = StateCritic().predict(states, returns, groups).values
    torch.testing.assert_close(StateCritic().predict(constant, returns, groups).values, expected, rtol=1e-6, atol=1e-6)


def test_r2_is_one_less_the_share_of_variance_that_is_not_explained():
    states, returns, groups = made_up(noise=5.0)
    values, r2, _ = StateCritic().predict(states, returns, groups)
    assert r2 == pytest.approx(1 - float((values - returns).square().mean()) / np.var(returns.numpy()))
    assert 0.5 < r2 < 1
    assert StateCritic().predict(states, torch.ones_like(returns), groups).r2 == 0


def test_a_single_group_without_earlier_batches_gets_its_mean():
    states, returns, groups = made_up(groups=1)
    prediction = StateCritic().predict(states, returns, groups)
    assert not prediction.solved
    torch.testing.assert_close(prediction.values, returns.mean().expand_as(returns))


def test_a_single_group_is_predicted_from_earlier_batches():
    critic = StateCritic()
    critic.predict(*made_up(seed=1))
    assert critic.predict(*made_up(groups=1, seed=2)).solved


def test_it_goes_on_from_a_checkpoint():
    batches = [made_up(seed=seed) for seed in range(3)]
    without_break, first, second = StateCritic(), StateCritic(), StateCritic()
    assert first.state_dict() == {}
    for batch in batches[:2]:
        without_break.predict(*batch)
        first.predict(*batch)
    second.load_state_dict(first.state_dict())
    assert torch.equal(without_break.predict(*batches[2]).values, second.predict(*batches[2]).values)


def test_states_of_another_size_start_it_anew():
    critic = StateCritic()
    critic.predict(*made_up(size=3))
    expected = StateCritic().predict(*made_up(size=5)).values
    assert torch.equal(critic.predict(*made_up(size=5)).values, expected)


@pytest.mark.parametrize(("place", "name"), [((4, 2), "hidden state"), ((4,), "return")])
def test_what_is_not_finite_is_named(place, name):
    states, returns, groups = made_up()
    (states if len(place) == 2 else returns)[place] = torch.nan
    with pytest.raises(NonFiniteError, match=f"row 4 of 77: its {name} is not finite"):
        StateCritic().predict(states, returns, groups)
