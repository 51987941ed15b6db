"""What the experience maker computes in the driver, against OpenRLHF's own."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.actors import make_config, makers

import openrlhf_swap.integration  # noqa: F401 - flash-attn may be missing


@pytest.fixture(scope="module")
def returns(tokenizer):
    """How the stock maker and ours compute returns."""
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    stock, swap = makers()
    args = SimpleNamespace(algo=SimpleNamespace(advantage=SimpleNamespace(estimator="group_norm")))
    parts = (None, None, None, None, FixedKLController(0.0), SimpleNamespace(args=args), tokenizer)
    return stock(*parts).get_cumulative_returns, swap(
        *parts, config=make_config()
    ).get_cumulative_returns


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


# A penalty on every token: a sum that is rounded in another way would differ in its last bits.
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 3), actions=st.integers(1, 300))
def test_returns_with_a_penalty_on_every_token_are_the_stock_ones_without_the_stock_loop(
    returns, seed, rows, actions
):
    stock, ours = returns
    drawn = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, actions, generator=drawn)
    mask = torch.randint(2, (rows, actions), generator=drawn)
    expected = stock(rewards, mask, 1.0)
    with pytest.MonkeyPatch.context() as patches:
        patches.delattr(type(stock.__self__), "get_cumulative_returns")
        assert torch.equal(ours(rewards, mask, 1.0), expected)
