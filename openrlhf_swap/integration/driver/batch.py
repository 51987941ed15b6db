"""A step's rollouts before and after the policy's forward: their steps, groups and metrics."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain

import torch
from openrlhf.trainer.ppo_utils.experience import Experience

from openrlhf_swap.integration.driver.experience_maker import AdvantageTerms
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.runs.metrics import Metrics, step_metrics, turn_metrics
from openrlhf_swap.scoring.signals import names_of


def cut_into_steps(
    groups: Iterable[Iterable[Rollout]],
    objective: Objective,
    reader: StepReader,
) -> list[Rollout]:
    """Give step ends, and rewards by turn, to the rollouts of which the objective wants them."""
    rollouts = []
    for rollout in chain.from_iterable(groups):
        if objective.reads_turn_rewards or names_of(rollout, objective.wanted_signals):
            ends = reader.step_ends(rollout.response_ids, rollout.turn_starts)
            rollout = replace(rollout, step_ends=ends)
        if objective.reads_turn_rewards:
            rollout = rollout.with_signals(turn_reward=rollout.rewards_by_step())
        rollouts.append(rollout)
    return rollouts


def batch_of(
    rollouts: Sequence[Rollout],
    size: int,
    objective: Objective,
    reader: StepReader,
) -> Batch:
    """Put rollouts, which are in order, into groups of `size`."""
    groups = [rollouts[start : start + size] for start in range(0, len(rollouts), size)]
    return Batch(groups, objective.coefficients, reader)


def describe(
    batch: Batch,
    experiences: Sequence[Experience],
    terms: AdvantageTerms,
    objective: Objective,
) -> Metrics:
    """The metrics of a batch: OpenRLHF's of its rewards and lengths, ours, the objective's."""
    rewards = torch.cat([experience.info["reward"] for experience in experiences]).float()
    lengths = torch.cat([experience.response_length for experience in experiences]).float()
    metrics = {
        "rollout/reward_mean": rewards.mean().item(),
        "rollout/reward_std": rewards.std().item(),
        "rollout/response_length_mean": lengths.mean().item(),
        "rollout/truncated_rate": batch.truncated.float().mean().item(),
        "rollout/num_samples": float(len(rewards)),
        "swap/thought_unclosed_frac": 1 - batch.closed.double().mean().item(),
    }
    metrics |= step_metrics(
        batch.steps,
        batch.credit,
        terms.advantages,
        terms.outcome,
        terms.process,
        objective.process_weight,
        objective.coefficients.price_by_weights,
    )
    metrics |= turn_metrics(batch.groups, batch.credit.penalties)
    return metrics | objective.metrics()
