"""Rewards of an environment by turn, by hand: from a rollout to the advantage of each token."""

from dataclasses import replace

import pytest
from support.objectives import MARKS, READER, CharacterReader, assert_rows, rollout

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.driver.batch import batch_of, cut_into_steps
from openrlhf_swap.integration.driver.experience import fit_context
from openrlhf_swap.objectives.registry import build


class TurnReader(CharacterReader):
    """Each turn is a step; of the last one the last token is the answer."""

    def step_ends(self, response_ids, turn_starts=(), closing=()):
        return [*(start - 1 for start in turn_starts), len(response_ids) - 2]


def agent(length, correct, rewards, starts):
    seen = [(start, [7, 7, 7]) for start in starts]
    return replace(rollout("", length, correct), turn_rewards=rewards, observations=seen)


GROUP = [agent(7, True, [0.0, 0.0, 2.0], [2, 4]), agent(5, False, [0.0, -1.0], [2])]
# e = 0, 0, 2 and 0, -1: mu = .2 and sigma = sqrt(4.8/4).
LOW = -0.2 / 1.2**0.5
HIGH = 1.8 / 1.2**0.5
COST = -1.2 / 1.2**0.5


def terms(group, **settings):
    """What is added to each token's outcome, where no answer is scored."""
    objective = build(MARKS.replaced(turn_weight=0.5, **settings))
    scored = []
    for each in cut_into_steps([group], objective, TurnReader()):
        if each.correct:
            each = each.with_signals(answer_logprobs=[-1.0] * (len(each.step_ends) + 1))
        scored.append(each)
    batch = batch_of(scored, len(group), objective, READER)
    return objective.token_advantages(batch)[0]


def test_a_turn_gets_what_it_and_later_ones_are_paid():
    expected = [
        [LOW / 2 + LOW / 4 + HIGH / 8] * 2 + [LOW / 2 + HIGH / 4] * 2 + [HIGH / 2] * 2 + [0],
        [LOW / 2 + COST / 4] * 2 + [COST / 2] * 2 + [0] * 3,
    ]
    assert_rows(terms(GROUP, step_discount=0.5), expected, 1e-5)
    # Each turn for itself.
    alone = [
        [LOW / 2] * 4 + [HIGH / 2] * 2 + [0],
        [LOW / 2] * 2 + [COST / 2] * 2 + [0] * 3,
    ]
    assert_rows(terms(GROUP, step_discount=0.0), alone, 1e-5)
    equal = [agent(7, True, [0.5], []), agent(5, False, [0.5], [])]
    assert_rows(terms(equal), [[0] * 7] * 2)


def test_an_own_trainer_gives_them_as_a_signal():
    traces = [
        StepTrace(7, True, [-1] * 4, [1, 3, 5], {"turn_reward": [0, 0, 2]}),
        StepTrace(5, False, [], [1, 3], {"turn_reward": [0, -1]}),
    ]
    config = SwapConfig(turn_weight=0.5, step_discount=0.5, outcome_weight=0, process_weight=1)
    rows = terms(GROUP, step_discount=0.5)
    for found, row, trace in zip(swap_advantages(traces, config), rows, traces, strict=True):
        assert_rows(found, row[: trace.length].tolist())
    with pytest.raises(ValueError, match="no rewards by turn"):
        swap_advantages([StepTrace(7, True, [-1, -1], [5])], config)


def test_rewards_that_are_not_of_a_turn_with_steps():
    first, _ = GROUP
    cut = replace(first, step_ends=(0, 1, 3))
    assert cut.rewards_by_step().tolist() == [0, 0, 2]
    assert first.rewards_by_step().tolist() == []  # nothing was thought
    cut = fit_context(first, first.start + 2 + 3 + 1)  # of the second turn one token is left
    assert cut.turn_rewards == [0.0, 0.0]
    assert cut.turn_starts == [2]
    with pytest.raises(DataError, match="gives no reward for each turn"):
        replace(first, turn_rewards=()).rewards_by_step()


def test_only_the_weight_asks_for_them():
    assert not build(MARKS).reads_turn_rewards
    plain = build(MARKS.replaced(objective="grpo"))
    for each in cut_into_steps([GROUP], plain, TurnReader()):
        assert not each.step_ends
