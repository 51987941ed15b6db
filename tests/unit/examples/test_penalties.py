"""The studies' own objectives, by hand and against the slow version."""

from dataclasses import replace

import pytest
import torch
from group_length import GroupLength
from support.objectives import MARKS, batch, objective, rollout
from support.slow_advantages import slow_advantages
from to_go import gains_to_go

from openrlhf_swap import StepTrace
from openrlhf_swap.algorithm.advantages import local_gains, penalty_weights


def test_the_length_term_without_a_critic_by_hand():
    # Right: 10 and 14 tokens, mean 12; in the other group 20 alone. Differences -2, 2, 0: deviation
    # 2.
    first = [rollout(length=10), rollout(length=14), rollout(length=30, correct=False)]
    second = [
        rollout(length=20),
        rollout(length=5, correct=False),
        rollout(length=6, correct=False),
    ]
    found = GroupLength(MARKS.replaced(objective="group_length:GroupLength")).token_advantages(
        batch(first, second)
    )
    assert found.shape == (2, 3, 30)
    assert found[..., 0].tolist() == [pytest.approx([1, -1, 0]), [0, 0, 0]]
    assert torch.equal(found, found[..., :1].expand_as(found))


def test_the_step_that_prepares_is_spared():
    # 3 + 5 - 3: the first step makes the answer unlikely, the second gets it, the third repeats it.
    scores, mask = (
        torch.tensor([-4.0, -6.0, -1.0, -1.0, 9.0]),
        torch.tensor([True, True, True, False]),
    )
    assert gains_to_go(scores, mask).tolist() == [3, 5, 0, 0]
    assert penalty_weights(local_gains(scores, mask), mask, 1.0).argmax() == 0
    assert penalty_weights(gains_to_go(scores, mask), mask, 1.0).argmax() == 2


@pytest.mark.parametrize("seed", range(20))
def test_what_is_still_to_be_gained_agrees_with_the_slow_version(seed):
    torch.manual_seed(seed)
    group, traces = [], []
    for length in (30, 24, 18):
        steps = int(torch.randint(1, 5, ()))
        ends, scores = (
            [4 * k + 3 for k in range(steps)],
            (-5 * torch.rand(steps + 1, dtype=torch.float64)).tolist(),
        )
        steps = replace(rollout("#", length=length), step_ends=ends)
        group.append(steps.with_signals(answer_logprobs=scores))
        traces.append(StepTrace(length, True, scores, ends))
    group.append(rollout("#", length=12, correct=False))
    method = objective("to_go:ToGo")
    (term,) = method.token_advantages(batch(group))
    slow = slow_advantages([*traces, StepTrace(12, False, [], [])], beta=0.0, theta=1.0, to_go=True)
    for row, expected in zip(term, slow, strict=True):
        torch.testing.assert_close(
            row[: len(expected)], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-9
        )
    assert (method.scores_steps, method.normaliser, method.outcome_weight) == (True, "group", 1)
    assert method.process_weight == pytest.approx(0.3)
