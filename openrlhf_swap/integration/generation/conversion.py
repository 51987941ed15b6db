"""Between OpenRLHF's experiences and our rollouts.

Shapes: B rows of a micro-batch, T tokens a row, A = T - 1 actions: action t is the prediction of token t + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from openrlhf_swap.errors import DataError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout

METADATA = "rollout/"  # prefix of a rollout's metadata in an experience's info
PROBES = "probes"  # its probes there


def reward_of(response: dict[str, Any]) -> float:
    """What a response was graded; raises DataError when the reward function gave no reward."""
    if response["reward"] is None:
        raise DataError("the reward function gave no reward for a response; its own error is in the log above")
    return float(response["reward"])


def rollout_of_response(response: dict[str, Any], prompt: str | None = None) -> Rollout:
    """What the engine's actor returned for one response; `prompt` is the one to train with, if another.

    Raises:
        DataError: when the reward function gave no reward.
    """
    ((start, end),) = response["action_ranges"]
    ids = list(response["observation_tokens"][start:end])
    return Rollout(
        prompt or response["prompt"],
        response["label"],
        ids,
        start,
        reward_of(response),
        bool(response.get("truncated", False)),
    )


def read_rollouts(samples: Experience, objective: Objective, reader: StepReader) -> list[Rollout]:
    """The rollouts of a micro-batch, with the steps of those that are scored: nothing else enters the process term."""
    return [_read_rollout(samples, row, objective, reader) for row in range(len(samples.sequences))]


def _read_rollout(samples: Experience, row: int, objective: Objective, reader: StepReader) -> Rollout:
    actions = samples.action_mask[row].nonzero().flatten()
    start = int(actions[0]) + 1 if len(actions) else samples.sequences.shape[1]
    response_ids = samples.sequences[row, start : start + len(actions)].tolist()
    reward = float(samples.rewards[row])
    return Rollout(
        prompt=samples.prompts[row],
        answer=samples.labels[row],
        response_ids=response_ids,
        start=start,
        reward=reward,
        truncated=bool(samples.truncated[row]),
        step_ends=reader.step_ends(response_ids) if reward > 0 and objective.scores_steps else (),
        probes=_as_probes(samples.info[PROBES][row]) if PROBES in samples.info else (),
        metadata={
            name.removeprefix(METADATA): float(values[row])
            for name, values in samples.info.items()
            if name.startswith(METADATA)
        },
    )


def probes_as_info(rollout: Rollout) -> dict[str, Tensor]:
    """A rollout's probes as OpenRLHF batches and carries them: a row of pairs, padded with zeros to the longest."""
    pairs = [number for kept, accuracy in rollout.probes for number in (kept + 1, accuracy)]  # + 1: no padding
    return {PROBES: torch.tensor([pairs], dtype=torch.float64)}


def _as_probes(row: Tensor) -> list[tuple[int, float]]:
    return [(int(kept) - 1, accuracy) for kept, accuracy in row.view(-1, 2).tolist() if kept]


def metadata_as_info(rollout: Rollout) -> dict[str, Tensor]:
    """A rollout's metadata as OpenRLHF batches and carries it: (1,) tensors in an experience's info."""
    return {METADATA + name: torch.tensor([value]) for name, value in rollout.metadata.items()}


def on_action_axis(values: Tensor, experience: Experience, rollouts: list[Rollout]) -> Tensor:
    """(B, A) the values of response tokens, moved to their actions; 0 elsewhere.

    Args:
        values: (rollouts of the batch, tokens of the longest), in the order of `Experience.index`.
        experience: the micro-batch.
        rollouts: all of the batch, in the same order.
    """
    moved = torch.zeros(experience.action_mask.shape, dtype=values.dtype)
    for row, index in enumerate(experience.index):
        first, length = rollouts[index].start - 1, len(rollouts[index].response_ids)
        moved[row, first : first + length] = values[index, :length]
    return moved


def over_actions(experiences: list[Experience], *values: list[Tensor]) -> list[Tensor]:
    """Of each list, which has a (B, A) tensor for every experience, all action tokens' values in one flat tensor."""
    places = [experience.action_mask.flatten().nonzero().flatten() for experience in experiences]
    return [torch.cat([value.flatten()[place] for value, place in zip(one, places, strict=True)]) for one in values]
