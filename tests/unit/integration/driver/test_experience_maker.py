"""What the experience maker computes in the driver, against OpenRLHF's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.integration.driver.experience_maker import SwapExperienceMaker


@pytest.fixture(scope="module")
def stock():
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    return RemoteExperienceMaker.get_cumulative_returns


def ours(rewards, mask, gamma=1.0):
    return SwapExperienceMaker.get_cumulative_returns(
        SwapExperienceMaker.__new__(SwapExperienceMaker), rewards, mask, gamma
    )


@given(data=st.data(), rows=st.integers(1, 4), actions=st.integers(1, 12))
def test_returns_are_the_stock_ones_bit_by_bit(stock, data, rows, actions):
    """One reward at the last action of a row, as group normalisation leaves it; in some rows none."""
    mask, rewards = torch.zeros(rows, actions, dtype=torch.int64), torch.zeros(rows, actions)
    for row in range(rows):
        start = data.draw(st.integers(0, actions - 1))
        stop = data.draw(st.integers(start, actions))
        mask[row, start:stop] = 1
        rewards[row, max(stop - 1, 0)] = data.draw(st.floats(-10, 10, width=32))
    assert torch.equal(ours(rewards, mask), stock(None, rewards, mask, 1.0))


@given(st.lists(st.lists(st.floats(-3, 3, width=32), min_size=5, max_size=5), min_size=1, max_size=3))
def test_several_rewards_a_row_are_left_to_the_stock_loop(stock, values):
    """A penalty on every token: a sum in another order would differ in its last bits."""
    rewards = torch.tensor(values)
    mask = torch.ones_like(rewards)
    assert torch.equal(ours(rewards, mask), stock(None, rewards, mask, 1.0))
    assert torch.equal(ours(rewards, mask, 0.9), stock(None, rewards, mask, 0.9))
