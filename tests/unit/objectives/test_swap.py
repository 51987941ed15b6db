"""SWAP's baseline by hand; the critic of length in training beside the public function."""

from dataclasses import replace

import pytest
import torch
from support.objectives import MARKS, READER, rollout

from openrlhf_swap import StateCritic, length_critic_advantages
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import Batch

LENGTHS = ((20, 31, 12, 25), (9, 40, 17, 22), (30, 30, 8, 14), (11, 13, 15, 17), (26, 9, 35, 19))


def rollouts(seed=0, scored=False):
    """Five groups of four; the states of a step know about a part of what is left, and noise."""
    generator = torch.Generator().manual_seed(seed)
    groups = []
    for lengths in LENGTHS:
        group = []
        for number, length in enumerate(lengths):
            ends = tuple(range(2, length - 2, 5))
            left = torch.tensor([[length - end - 1.0] for end in (-1, *ends)])
            noisy = left + 2 * torch.randn(left.shape, generator=generator)
            states = torch.cat([noisy, torch.randn(len(left), 3)], -1)
            correct = number != length % 4
            found = replace(rollout("", length, correct), step_ends=ends)
            found = found.with_signals(states=states)
            if scored and correct:
                scores = torch.randn(len(ends) + 1, generator=generator) - 1
                found = found.with_signals(answer_logprobs=scores)
            group.append(found)
        groups.append(group)
    return groups


def batch_of(objective, groups):
    return Batch(groups, objective.coefficients, READER)


@pytest.mark.parametrize("options", [{}, {"gae_lambda": "1", "pays": "all"}, {"target": "group"}])
def test_training_adds_what_the_public_function_gives(options):
    config = MARKS.replaced(objective="length_critic", process_weight=0.6, options=options)
    objective, critic = build(config), StateCritic()
    for seed in range(3):  # the second and third batch are predicted from earlier ones, too
        groups = rollouts(seed)
        process = objective.token_advantages(batch_of(objective, groups))
        traces = [[r.trace() for r in group] for group in groups]
        public = length_critic_advantages(traces, config, critic)
        for group, rows, expected_rows in zip(groups, process, public, strict=True):
            rewards = torch.tensor([r.reward for r in group], dtype=torch.float64)
            outcome = (rewards - rewards.mean()) / (rewards.std() + 1e-6)
            numbers = zip(group, rows, outcome, expected_rows, strict=True)
            for response, row, a_out, expected in numbers:
                found = a_out + 0.6 * row[: len(response.response_ids)]
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert objective.metrics()["swap/critic_r2"] > 0.5
    assert objective.metrics()["swap/critic_unsolved"] == 0


def test_its_predictions_are_listed_for_every_state_of_every_response():
    objective, groups = build(MARKS.replaced(objective="length_critic")), rollouts()
    objective.token_advantages(batch_of(objective, groups))
    flat = [r for group in groups for r in group]
    states = [len(r.step_ends) + 1 for r in flat]
    assert [len(row) for row in objective.predicted_tokens_left] == states
    starts = torch.tensor([row[0] for row in objective.predicted_tokens_left])
    lengths = torch.tensor([float(len(r.response_ids)) for r in flat])
    assert (starts - lengths).abs().mean() < 4


def swap_process(baseline, groups, critic=None):
    objective = build(MARKS.replaced(step_baseline=baseline))
    if critic is not None:
        objective.critic = critic
    return objective.token_advantages(batch_of(objective, groups))


class OneNumber(StateCritic):
    """Predicts the same return for all states."""

    def predict(self, states, returns, groups):
        assert len(states) == len(returns) == len(groups)
        found = super().predict(states, returns, groups)
        return found._replace(values=torch.full_like(returns, 0.25))


def test_swap_takes_the_predicted_rewards_to_come_off_each_step():
    groups = rollouts(scored=True)
    plain, based = swap_process("zero", groups), swap_process("state", groups, OneNumber())
    for group, rows, expected_rows in zip(groups, based, plain, strict=True):
        for response, row, expected in zip(group, rows, expected_rows, strict=True):
            last = response.step_ends[-1] if response.correct else -1
            in_steps = torch.arange(len(row)) <= last
            torch.testing.assert_close(row, expected - 0.25 * in_steps.double())


def test_swaps_baseline_comes_from_the_states():
    """The return of a step is the first number of its state: next to nothing is left of it."""
    groups = rollouts(scored=True)
    plain = swap_process("zero", groups)
    told = []
    for group, rows in zip(groups, plain, strict=True):
        told.append([])
        for response, row in zip(group, rows, strict=True):
            returns = row[[0, *(end + 1 for end in response.step_ends)]]
            states = torch.cat([returns[:, None], torch.randn(len(returns), 2).double()], -1)
            told[-1].append(response.with_signals(states=states))
    based = swap_process("state", told, StateCritic(ridge=1e-6))
    assert plain.abs().max() > 1 and based.abs().max() < 1e-3


def test_a_group_without_a_signal_stays_without():
    groups = rollouts(scored=True)
    groups[1] = [replace(r, reward=0.0, signals={"states": r.states}) for r in groups[1]]
    assert not swap_process("state", groups)[1].any()
    assert swap_process("state", groups)[0].any()


def test_without_a_process_term_no_states_are_read():
    assert build(MARKS.replaced(step_baseline="state")).reads_states
    assert not build(MARKS.replaced(step_baseline="state", process_weight=0.0)).reads_states
    assert not build(MARKS).reads_states
