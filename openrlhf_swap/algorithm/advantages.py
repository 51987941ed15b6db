"""From step markers to token advantages.

Shapes: G groups, N responses a group, K steps (padded at the end), A tokens of the longest response. Statistics are
computed in float64, so that neither group size nor input dtype changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.gains import local_gains, monotone_gains
from openrlhf_swap.algorithm.penalty import penalty_masses, penalty_weights


@dataclass(frozen=True)
class StepSignals:
    """What SWAP computes from the markers; (G, N, K) float64, except `penalty_mass` (G, N) and the last two (G,).

    `deviation` is sigma in nats; `price` is what the normalisation subtracts from every step: mu/(sigma + eps). Both
    are NaN for a group whose steps get no signal.
    """

    gains: Tensor
    local_gains: Tensor
    penalty_mass: Tensor
    penalties: Tensor
    rewards: Tensor
    normalised: Tensor
    deviation: Tensor
    price: Tensor


def step_signals(batch: StepBatch, coefficients: Coefficients) -> StepSignals:
    """Step rewards r_k = Delta_k - P w_k and their normalised form r~_k (Eq. final_step_reward, norm_step)."""
    gains = monotone_gains(batch.answer_logprobs, batch.step_mask)
    changes = local_gains(batch.answer_logprobs, batch.step_mask)
    mass = penalty_masses(batch.lengths, batch.correct, coefficients.length_coef)
    tau = step_tau(changes, batch.step_mask, coefficients)
    penalties = mass.unsqueeze(-1) * penalty_weights(changes, batch.step_mask, tau)
    rewards = gains - penalties
    normalised = normalise_step_rewards(
        rewards, batch.step_mask, coefficients.eps, coefficients.centres_steps, coefficients.step_noise
    )
    normalised = torch.where(batch.step_mask, normalised - coefficients.step_constant, 0.0)
    mean, deviation, spreads = (
        moment.squeeze(-1) for moment in _moments(rewards.flatten(1), batch.step_mask.flatten(1), coefficients.eps)
    )
    deviation = torch.where(spreads, deviation, math.nan)
    price = mean / (deviation.clamp(min=coefficients.step_noise) + coefficients.eps) * coefficients.centres_steps
    return StepSignals(gains, changes, mass, penalties, rewards, normalised, deviation, price)


def step_tau(gains: Tensor, step_mask: Tensor, coefficients: Coefficients) -> float | Tensor:
    """In nats, tau: the number itself, or that many standard deviations of each group's local gains.

    The deviation is pooled over the same steps as sigma, and `step_noise` bounds it from below likewise.

    Args:
        gains: (G, N, K) that the weights are made of.
        step_mask: (G, N, K) bool.
        coefficients: tau, its unit, `step_noise` and `eps`.

    Returns:
        tau, or (G, 1, 1) float64, infinite for a group with fewer than two steps or no spread: uniform weights.
    """
    if not coefficients.in_deviations:
        return coefficients.tau
    _, deviation, spreads = _moments(gains.double().flatten(1), step_mask.flatten(1), coefficients.eps)
    deviation = torch.where(spreads, deviation.clamp(min=coefficients.step_noise), torch.inf)
    return (coefficients.tau * deviation).unsqueeze(-1)


def outcome_rewards(batch: StepBatch, coefficients: Coefficients) -> Tensor:
    """(G, N) float64: c, or c - c P for an objective that penalises the outcome."""
    rewards = batch.correct.double()
    if coefficients.penalises_outcome:
        rewards = rewards - penalty_masses(batch.lengths, batch.correct, coefficients.length_coef)
    return rewards


def outcome_advantages(rewards: Tensor, eps: float) -> Tensor:
    """A_out = (r - mean)/(std + eps) over each group (Eq. out_adv); std is unbiased.

    Args:
        rewards: (G, N).
        eps: added to the deviation; a deviation below it counts as float noise, and the group gets 0.

    Returns:
        (G, N) float64. A group of one gets 0.
    """
    return _standardise(rewards.double(), torch.ones_like(rewards, dtype=torch.bool), eps)


def normalise_step_rewards(
    rewards: Tensor, step_mask: Tensor, eps: float, centre: bool = True, noise: float = 0.0
) -> Tensor:
    """r~ = (r - mu)/(sigma + eps), mu and sigma pooled over all steps of a group's correct responses (Eq. norm_step).

    Args:
        rewards: (G, N, K).
        step_mask: (G, N, K) bool, True for the steps of correct responses.
        eps: as in `outcome_advantages`.
        centre: whether mu is subtracted; without it r~ = r/(sigma + eps).
        noise: in nats; a smaller sigma is replaced by it.

    Returns:
        (G, N, K) float64; 0 where there is no step, and for a group with fewer than two steps or no spread.
    """
    flat = _standardise(rewards.double().flatten(1), step_mask.flatten(1), eps, centre, noise)
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
    to_come = normalised.flip(-1).cumsum(-1).flip(-1)
    return per_token(torch.nn.functional.pad(to_come, (0, 1)), step_ends, step_mask, tokens)


def per_token(values: Tensor, step_ends: Tensor, step_mask: Tensor, tokens: int) -> Tensor:
    """Give each token the value of its step.

    Args:
        values: (..., K+1), one for each step, and behind the last step of a response the one of all later tokens.
        step_ends: (..., K) ascending token indices.
        step_mask: (..., K) bool.
        tokens: A, the length of the token axis.

    Returns:
        (..., A) in the dtype of `values`.
    """
    *leading, count = values.shape
    rows = math.prod(leading)
    ends = torch.where(step_mask, step_ends, tokens).reshape(rows, count - 1)
    # Number of steps that ended before token t, which is the index of the step that t lies in.
    positions = torch.arange(tokens, device=ends.device).expand(rows, -1)
    step_of_token = torch.searchsorted(ends.contiguous(), positions.contiguous())
    return values.reshape(rows, count).gather(-1, step_of_token).view(*leading, tokens)


def unified_advantages(
    outcome: Tensor, process: Tensor | None, outcome_weight: float, process_weight: float
) -> Tensor:
    """A[t] = beta A_out + theta [correct] A_proc[t] (Eq. unified_adv). The one place where both terms meet.

    Args:
        outcome: A_out of each token, any shape and floating dtype.
        process: A_proc of each token, of the same shape, 0 for incorrect responses; without it (None) the result is
            `outcome_weight * outcome`, bit for bit.
        outcome_weight: beta.
        process_weight: theta.

    Returns:
        Shape and dtype of `outcome`. The process term is weighted in its own dtype before it is added.
    """
    advantages = outcome_weight * outcome
    return advantages if process is None else advantages + (process_weight * process).to(outcome.dtype)


def _standardise(values: Tensor, mask: Tensor, eps: float, centre: bool = True, floor: float = 0.0) -> Tensor:
    """(values - mean)/(max(std, floor) + eps) over the last axis where `mask`; 0 elsewhere or without spread."""
    mean, std, spreads = _moments(values, mask, eps)
    baseline = mean if centre else torch.zeros_like(mean)
    return torch.where(spreads & mask, (values - baseline) / (std.clamp(min=floor) + eps), 0.0)


def _moments(values: Tensor, mask: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, unbiased deviation, and whether there is any, over the last axis where `mask` is True; all (..., 1)."""
    count = mask.sum(-1, keepdim=True)
    mean = torch.where(mask, values, 0.0).sum(-1, keepdim=True) / count.clamp(min=1)
    centred = torch.where(mask, values - mean, 0.0)
    std = (centred.square().sum(-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
    return mean, std, (count > 1) & (std > eps * mean.abs().clamp(min=1))
