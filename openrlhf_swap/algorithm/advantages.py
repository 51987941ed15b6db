"""From step markers to token advantages.

Shapes: G groups, N responses a group, K steps (padded at the end), A tokens of the longest response. Statistics are
computed in float64, so that neither group size nor input dtype changes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from openrlhf_swap.algorithm.gains import local_gains, monotone_gains
from openrlhf_swap.algorithm.penalty import penalty_masses, penalty_weights
from openrlhf_swap.algorithm.recipe import Recipe, recipe
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import NonFiniteError


@dataclass(frozen=True)
class StepTrace:
    """One response of a group.

    Attributes:
        length: L, generated tokens, the end token included.
        correct: c, whether the answer was graded right.
        answer_logprobs: l_0..l_K in nats per answer token. Only a correct response's are used.
        step_ends: e_1..e_K, the index of each step's last token in the response.
    """

    length: int
    correct: bool
    answer_logprobs: Sequence[float]
    step_ends: Sequence[int]


@dataclass(frozen=True)
class StepBatch:
    """G groups of N responses as tensors.

    Attributes:
        lengths: (G, N) int64.
        correct: (G, N) bool.
        answer_logprobs: (G, N, K+1) float64; anything where there is no step.
        step_ends: (G, N, K) int64; anything where there is no step.
        step_mask: (G, N, K) bool; False for every step of a response that is not correct.
    """

    lengths: Tensor
    correct: Tensor
    answer_logprobs: Tensor
    step_ends: Tensor
    step_mask: Tensor

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StepTrace]]) -> StepBatch:
        """Check and pad equally large groups.

        Raises:
            ValueError: for an empty or unequal group, or step ends that do not fit the response.
            NonFiniteError: for a NaN or infinite log-probability of a correct response.
        """
        sizes = {len(group) for group in groups}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"groups have sizes {sorted(sizes)}; every group needs the same number of responses")
        size = sizes.pop()
        traces = [trace for group in groups for trace in group]
        for position, trace in enumerate(traces):
            _check_trace(trace, f"response {position % size} of group {position // size}")

        scored = [trace.correct and len(trace.step_ends) > 0 for trace in traces]
        steps = max((len(t.step_ends) for t, used in zip(traces, scored, strict=True) if used), default=0)
        logprobs = torch.zeros(len(traces), steps + 1, dtype=torch.float64)
        ends = torch.zeros(len(traces), steps, dtype=torch.int64)
        mask = torch.zeros(len(traces), steps, dtype=torch.bool)
        for row, (trace, used) in enumerate(zip(traces, scored, strict=True)):
            if used:
                count = len(trace.step_ends)
                logprobs[row, : count + 1] = torch.tensor(trace.answer_logprobs, dtype=torch.float64)
                ends[row, :count] = torch.tensor(trace.step_ends)
                mask[row, :count] = True
        shape = (len(groups), size)
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([bool(trace.correct) for trace in traces]).view(shape),
            answer_logprobs=logprobs.view(*shape, -1),
            step_ends=ends.view(*shape, -1),
            step_mask=mask.view(*shape, -1),
        )


@dataclass(frozen=True)
class StepSignals:
    """What SWAP makes of the markers; all (G, N, K) float64 but `penalty_mass`, which is (G, N)."""

    gains: Tensor
    local_gains: Tensor
    penalty_mass: Tensor
    penalties: Tensor
    rewards: Tensor
    normalised: Tensor


def step_signals(batch: StepBatch, numbers: Recipe, eps: float) -> StepSignals:
    """Step rewards r_k = Delta_k - P w_k and their normalised form r~_k (Eq. final_step_reward, norm_step)."""
    gains = monotone_gains(batch.answer_logprobs, batch.step_mask)
    changes = local_gains(batch.answer_logprobs, batch.step_mask)
    mass = penalty_masses(batch.lengths, batch.correct, numbers.length_coef)
    penalties = mass.unsqueeze(-1) * penalty_weights(changes, batch.step_mask, numbers.temperature)
    rewards = gains - penalties
    normalised = normalise_step_rewards(rewards, batch.step_mask, eps)
    normalised = torch.where(batch.step_mask, normalised - numbers.step_constant, 0.0)
    return StepSignals(gains, changes, mass, penalties, rewards, normalised)


def outcome_rewards(batch: StepBatch, numbers: Recipe) -> Tensor:
    """(G, N) float64: c, or c - c P for an objective that penalises the outcome."""
    rewards = batch.correct.double()
    if numbers.penalises_outcome:
        rewards = rewards - penalty_masses(batch.lengths, batch.correct, numbers.length_coef)
    return rewards


def outcome_advantages(rewards: Tensor, eps: float) -> Tensor:
    """A_out = (r - mean)/(std + eps) over each group (Eq. out_adv); std is unbiased.

    Args:
        rewards: (G, N).
        eps: added to the deviation; a deviation below it is float noise, and the group gets 0.

    Returns:
        (G, N) float64. A group of one gets 0.
    """
    return _standardise(rewards.double(), torch.ones_like(rewards, dtype=torch.bool), eps)


def normalise_step_rewards(rewards: Tensor, step_mask: Tensor, eps: float) -> Tensor:
    """r~ = (r - mu)/(sigma + eps), mu and sigma pooled over all steps of a group's correct responses.

    Args:
        rewards: (G, N, K).
        step_mask: (G, N, K) bool, True for the steps of correct responses.
        eps: as in `outcome_advantages`.

    Returns:
        (G, N, K) float64; 0 where there is no step, and for a group with fewer than two steps or no spread.
    """
    flat = _standardise(rewards.double().flatten(1), step_mask.flatten(1), eps)
    return flat.view(rewards.shape)


def process_advantages(normalised: Tensor, step_ends: Tensor, step_mask: Tensor, tokens: int) -> Tensor:
    """A_proc[t] = sum of r~_k over the steps that end at t or later (Eq. proc_adv).

    Args:
        normalised: (..., K) r~, 0 where there is no step.
        step_ends: (..., K) ascending token indices.
        step_mask: (..., K) bool.
        tokens: A, the length of the token axis.

    Returns:
        (..., A) in the dtype of `normalised`: constant inside a step, 0 after the last step's end.
    """
    *leading, steps = normalised.shape
    rows = math.prod(leading)
    to_come = normalised.reshape(rows, steps).flip(-1).cumsum(-1).flip(-1)
    to_come = torch.nn.functional.pad(to_come, (0, 1))
    ends = torch.where(step_mask, step_ends, tokens).reshape(rows, steps)
    # Number of steps that ended before token t, which is the index of the step that t lies in.
    positions = torch.arange(tokens, device=ends.device).expand(rows, -1)
    step_of_token = torch.searchsorted(ends.contiguous(), positions.contiguous())
    return to_come.gather(-1, step_of_token).view(*leading, tokens)


def swap_advantages(group: Sequence[StepTrace], config: SwapConfig) -> list[Tensor]:
    """A[t] = beta A_out + theta [correct] A_proc[t] for one group of responses (Eq. unified_adv).

    Args:
        group: the responses to one prompt.
        config: objective and numbers.

    Returns:
        One float64 tensor of `length` values a response.

    Raises:
        ValueError: for an empty group, or step ends that do not fit their response.
        NonFiniteError: for a NaN or infinite log-probability of a correct response.
    """
    batch = StepBatch.from_traces([group])
    numbers = recipe(config)
    outcome = numbers.outcome_weight * outcome_advantages(outcome_rewards(batch, numbers), config.eps)
    tokens = int(batch.lengths.max())
    advantages = outcome.unsqueeze(-1).expand(-1, -1, tokens)
    if numbers.process_weight > 0:
        signals = step_signals(batch, numbers, config.eps)
        process = process_advantages(signals.normalised, batch.step_ends, batch.step_mask, tokens)
        advantages = advantages + numbers.process_weight * process
    return [row[: trace.length].clone() for row, trace in zip(advantages[0], group, strict=True)]


def _standardise(values: Tensor, mask: Tensor, eps: float) -> Tensor:
    """(values - mean)/(std + eps) over the last axis where `mask`; 0 elsewhere and where there is no spread."""
    count = mask.sum(-1, keepdim=True)
    mean = torch.where(mask, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(mask, values - mean, 0.0)
    std = (centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    spreads = (count > 1) & (std > eps * mean.abs().clamp(min=1))
    return torch.where(spreads, centred / (std + eps), 0.0)


def _check_trace(trace: StepTrace, where: str) -> None:
    if trace.length < 0:
        raise ValueError(f"{where}: length is {trace.length}; use the number of generated tokens")
    if not trace.correct or len(trace.step_ends) == 0:
        return
    if len(trace.answer_logprobs) != len(trace.step_ends) + 1:
        raise ValueError(
            f"{where}: {len(trace.answer_logprobs)} answer_logprobs for {len(trace.step_ends)} step_ends; "
            "give l_0..l_K, one more than there are steps"
        )
    ends = list(trace.step_ends)
    if ends[0] < 0 or ends[-1] >= trace.length or any(a >= b for a, b in pairwise(ends)):
        raise ValueError(f"{where}: step_ends {ends} must ascend within 0..{trace.length - 1}")
    for k, value in enumerate(trace.answer_logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(f"{where}: answer_logprobs[{k}] is {value}; a log-probability must be finite")
