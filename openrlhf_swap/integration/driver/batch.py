"""A step's rollouts: cut into steps before the policy's forward, put into groups after it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.scoring.signals import names_of


def cut_into_steps(
    groups: Iterable[Iterable[Rollout]], objective: Objective, reader: StepReader
) -> list[Rollout]:
    """Give the rollouts their step ends and rewards by turn, where the objective wants these."""
    rollouts = []
    for rollout in chain.from_iterable(groups):
        if objective.reads_turn_rewards or names_of(rollout, objective.wanted_signals):
            ends = reader.step_ends(rollout.response_ids, rollout.turn_starts, rollout.closing)
            rollout = replace(rollout, step_ends=ends)
        if objective.reads_turn_rewards:
            rollout = rollout.with_signals(turn_reward=rollout.rewards_by_step())
        rollouts.append(rollout)
    return rollouts


def batch_of(
    rollouts: Sequence[Rollout], size: int, objective: Objective, reader: StepReader
) -> Batch:
    """Put rollouts, which are in order, into groups of `size`."""
    groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    return Batch(groups, objective.coefficients, reader)
