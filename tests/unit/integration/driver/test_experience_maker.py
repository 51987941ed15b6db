"""What the experience maker computes in the driver, against OpenRLHF's own."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.actors import make_config, makers


@pytest.fixture(scope="module")
def returns(tokenizer):
    """How the stock maker and ours compute returns."""
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    stock, swap = makers()
    args = SimpleNamespace(algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm")))
    parts = (None, None, None, None, FixedKLController(0.0), SimpleNamespace(args=args), tokenizer)
    return stock(*parts).get_cumulative_returns, swap(*parts, config=make_config()).get_cumulative_returns


@given(data=st.data(), rows=st.integers(1, 4), actions=st.integers(1, 12))
def test_returns_are_the_stock_ones_bit_by_bit(returns, data, rows, actions):
    """One reward at the last action of a row, as group normalisation leaves it; in some rows none."""
    stock, ours = returns
    mask, rewards = torch.zeros(rows, actions, dtype=torch.int64), torch.zeros(rows, actions)
    for row in range(rows):
        start = data.draw(st.integers(0, actions - 1))
        stop = data.draw(st.integers(start, actions))
        mask[row, start:stop] = 1
        rewards[row, max(stop - 1, 0)] = data.draw(st.floats(-10, 10, width=32))
    assert torch.equal(ours(rewards, mask, 1.0), stock(rewards, mask, 1.0))


@given(st.lists(st.lists(st.floats(-3, 3, width=32), min_size=5, max_size=5), min_size=1, max_size=3))
def test_several_rewards_a_row_are_left_to_the_stock_loop(returns, values):
    """A penalty on every token: a sum in another order would differ in its last bits."""
    stock, ours = returns
    rewards = torch.tensor(values)
    mask = torch.ones_like(rewards)
    assert torch.equal(ours(rewards, mask, 1.0), stock(rewards, mask, 1.0))
    assert torch.equal(ours(rewards, mask, 0.9), stock(rewards, mask, 0.9))
