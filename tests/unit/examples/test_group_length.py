"""The length term without a critic, by hand."""

import pytest
import torch
from group_length import GroupLength
from support.objectives import MARKS, batch, rollout


def test_by_hand():
    # Right: 10 and 14 tokens, mean 12; in the other group 20 alone. Differences -2, 2, 0: deviation 2.
    first = [rollout(length=10), rollout(length=14), rollout(length=30, correct=False)]
    second = [rollout(length=20), rollout(length=5, correct=False), rollout(length=6, correct=False)]
    found = GroupLength(MARKS.replaced(objective="group_length:GroupLength")).token_advantages(batch(first, second))
    assert found.shape == (2, 3, 30)
    assert found[..., 0].tolist() == [pytest.approx([1, -1, 0]), [0, 0, 0]]
    assert torch.equal(found, found[..., :1].expand_as(found))
