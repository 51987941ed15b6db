"""From step markers to token advantages.

Shapes: G groups, N responses a group, K steps (padded at the end), A tokens of the longest
response. Everywhere `step_mask` is (..., K) bool, True where a step exists, `step_ends` (..., K)
the ascending indices of the steps' last tokens, and `tokens` is A. Statistics are computed in
float64, so that neither group size nor input dtype changes them.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.signals import NEED


def monotone_gains(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """Progress beyond the best so far: Delta_k = max(0, l_k - max_{j<k} l_j).

    (..., K), 0 where there is no step, from (..., K+1) l_0..l_K in nats per answer token.
    """
    best_so_far = answer_logprobs.cummax(dim=-1).values
    changes = answer_logprobs[..., 1:] - best_so_far[..., :-1]
    return torch.where(step_mask, changes.clamp(min=0), 0.0)


def local_gains(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """Change over one step: g_k = l_k - l_{k-1}. Shapes as in `monotone_gains`."""
    return torch.where(step_mask, answer_logprobs.diff(dim=-1), 0.0)


def target_lengths(lengths: Tensor, correct: Tensor) -> Tensor:
    """L_target: the median length of each group's correct responses.

    Of an even count it is the mean of the middle two. (G,) float64, NaN for a group without a
    correct response, from (G, N) lengths in tokens, the end token included.
    """
    of_correct = torch.where(correct, lengths.double(), torch.nan)
    return of_correct.nanquantile(0.5, dim=-1)


def penalty_masses(lengths: Tensor, correct: Tensor, length_coef: float) -> Tensor:
    """P = lambda (L - L_target)/L_target for correct responses over the target, else 0.

    (G, N) float64, from arguments as in `target_lengths` and lambda.
    """
    target = target_lengths(lengths, correct).unsqueeze(-1)
    exceeds = correct & (lengths > target) & (target > 0)
    excess = lengths.double() - target
    return torch.where(exceeds, length_coef * excess / target, 0.0)


def penalty_weights(gains: Tensor, step_mask: Tensor, tau: float | Tensor) -> Tensor:
    """Weights w = softmax(-g/tau): the least gain has the largest share.

    (..., K), sums to 1 over the steps that exist; all 0 where there is none. Tau is in nats, as the
    gains are: a number, or a tensor that broadcasts to (..., 1); infinity gives uniform weights.
    """
    if step_mask.shape[-1] == 0:
        return torch.zeros_like(gains)
    of_steps = torch.where(step_mask, gains, torch.inf)
    least = of_steps.amin(dim=-1, keepdim=True)
    # The least gain is subtracted before the division, so that no tau can overflow.
    scores = torch.where(step_mask, (least - gains) / tau, -torch.inf)
    return torch.where(step_mask, scores.softmax(dim=-1), 0.0)


@dataclass(frozen=True)
class StepCredit:
    """The gains, penalties and rewards of the steps of a batch; all are float64.

    Attributes:
        gains: (G, N, K) Delta, in nats per answer token.
        local_gains: (G, N, K) g, in nats per answer token.
        penalty_mass: (G, N) P.
        weights: (G, N, K) w, the steps' shares of the penalty.
        penalties: (G, N, K) P w.
        rewards: (G, N, K) r, in nats per answer token.
        step_baselines: (G, N, K) what the normalisation subtracts from each r/(sigma + eps).
        normalised: (G, N, K) r~.
        deviation: (G,) sigma in nats; NaN for a group whose steps get no signal.
        baseline: (G,) mu/(sigma + eps); NaN for a group whose steps get no signal.
    """

    gains: Tensor
    local_gains: Tensor
    penalty_mass: Tensor
    weights: Tensor
    penalties: Tensor
    rewards: Tensor
    step_baselines: Tensor
    normalised: Tensor
    deviation: Tensor
    baseline: Tensor


def step_credit(
    batch: StepBatch, coefficients: Coefficients, weights: Tensor | None = None
) -> StepCredit:
    """Step rewards r_k and their normalised form r~_k.

    A step's reward is its gain less its share of the penalty: r_k = Delta_k - P w_k. With
    `rewards_need` it is its gain plus its need, r_k = Delta_k + n_k, both in nats per token; then
    there is no penalty, and w is uniform. `weights` are w of your own, (G, N, K).

    r~_k = (r_k - mu)/(sigma + eps). Mean and deviation are pooled over all steps of a group's
    correct responses, and `step_noise`, in nats, is the least sigma. r~_k is 0 where there is no
    step, and for a group with fewer than two steps or no spread.
    """
    mask = batch.step_mask
    gains = monotone_gains(batch.answer_logprobs, mask)
    changes = local_gains(batch.answer_logprobs, mask)
    ranked = gains if coefficients.weights_from == "monotone" else changes
    tau: float | Tensor
    if coefficients.rewards_need:
        earned = gains + needs(batch)
        mask = mask & ~earned.isnan()  # a step whose need was not read has no reward
        mass = torch.zeros(batch.lengths.shape, dtype=torch.float64)
        tau = math.inf
    else:
        earned = gains
        mass = penalty_masses(batch.lengths, batch.correct, coefficients.length_coef)
        tau = step_tau(ranked, mask, coefficients)
    if weights is None:
        weights = penalty_weights(ranked, mask, tau)
    penalties = mass.unsqueeze(-1) * weights
    rewards = torch.where(mask, earned - penalties, 0.0)

    pooled = moments(rewards.flatten(1), mask.flatten(1), coefficients.eps)
    deviation = pooled.deviation.clamp(min=coefficients.step_noise)
    divisor = deviation + coefficients.eps
    baseline = pooled.mean / divisor
    has_signal = mask & pooled.spreads.unsqueeze(-1)
    step_baselines = _step_baselines(baseline, weights, has_signal, coefficients)
    in_deviations = rewards / divisor.unsqueeze(-1)
    scaled = torch.where(has_signal, in_deviations, 0.0)
    normalised = torch.where(mask, scaled - step_baselines - coefficients.step_constant, 0.0)
    known_deviation = torch.where(pooled.spreads, pooled.deviation, math.nan)
    known_baseline = torch.where(pooled.spreads, baseline, math.nan)
    return StepCredit(
        gains=gains,
        local_gains=changes,
        penalty_mass=mass,
        weights=weights,
        penalties=penalties,
        rewards=rewards,
        step_baselines=step_baselines,
        normalised=normalised,
        deviation=known_deviation.squeeze(-1),
        baseline=known_baseline.squeeze(-1),
    )


def _step_baselines(
    baseline: Tensor, weights: Tensor, has_signal: Tensor, coefficients: Coefficients
) -> Tensor:
    """(G, N, K) what is subtracted from each step's reward; `baseline` is (G, 1) mu/(sigma + eps).

    Each step has the same baseline. With `baseline_by_weights` the sum over a response of K steps
    stays, and step k has K w_k times the baseline (docs/method/method.md). It is 0 for a step
    without a signal.
    """
    equal = torch.where(has_signal, baseline.unsqueeze(-1), 0.0)
    if not coefficients.baseline_by_weights:
        return equal
    steps = has_signal.sum(-1, keepdim=True)
    return equal * steps * weights


def needs(batch: StepBatch) -> Tensor:
    """(G, N, K) float64 n_k in nats per token, NaN where it was not read, 0 where no step is.

    Raises ValueError for a batch with scored steps whose need was not read.
    """
    if NEED.name in batch.signals:
        return torch.where(batch.step_mask, batch.signals[NEED.name], 0.0)
    if batch.step_mask.any():
        raise ValueError(
            f"--swap.step_reward is need, but the responses have no {NEED.name}; read it by "
            f"`Scorer` with the same settings, or give StepTrace signals={{'{NEED.name}': ...}}"
        )
    return torch.zeros(batch.step_mask.shape, dtype=torch.float64)


def step_tau(gains: Tensor, step_mask: Tensor, coefficients: Coefficients) -> float | Tensor:
    """Tau in nats: the number itself, or that many standard deviations of each group's gains.

    Gains are (G, N, K), g or Delta. The deviation is pooled over the same steps as sigma, and
    `step_noise` is its lower bound, too. It gives (G, 1, 1) float64, infinite (uniform weights) for
    a group with fewer than two steps or no spread.
    """
    tau = coefficients.tau
    if not tau.in_deviations:
        return tau.number
    of_group = gains.double().flatten(1)
    pooled = moments(of_group, step_mask.flatten(1), coefficients.eps)
    deviation = pooled.deviation.clamp(min=coefficients.step_noise)
    deviation = torch.where(pooled.spreads, deviation, torch.inf)
    return (tau.number * deviation).unsqueeze(-1)


def outcome_rewards(batch: StepBatch, coefficients: Coefficients) -> Tensor:
    """(G, N) float64: c, or c - c P for an objective that penalises the outcome."""
    rewards = batch.correct.double()
    if not coefficients.penalises_outcome:
        return rewards
    mass = penalty_masses(batch.lengths, batch.correct, coefficients.length_coef)
    return rewards - mass


def outcome_advantages(rewards: Tensor, eps: float = 1e-6) -> Tensor:
    """(G, N) float64 A_out = (r - mean)/(std + eps) over each group; std is unbiased.

    A deviation below eps counts as float noise, and the group gets 0, as does a group of one.
    """
    return standardise(rewards, eps=eps)


def standardise(
    values: Tensor, mask: Tensor | None = None, eps: float = 1e-6, unbiased: bool = True
) -> Tensor:
    """(value - mean)/(std + eps) over the last dimension, of the values where `mask` is True.

    Takes values of any dtype and a bool mask, both (..., n), or no mask for all values; flatten the
    dimensions that are to be pooled. Returns (..., n) float64: 0 where the mask is False, and
    everywhere in a row with fewer than two values or a std that is no more than float noise, which
    is eps times the mean's size. Without `unbiased` the std divides by the number of values instead
    of one less.
    """
    values = values.double()
    pooled = moments(values, mask, eps, unbiased)
    scaled = (values - pooled.mean) / (pooled.deviation + eps)
    counts = pooled.spreads if mask is None else mask & pooled.spreads
    return torch.where(counts, scaled, 0.0)


def process_advantages(
    normalised: Tensor, step_ends: Tensor, step_mask: Tensor, tokens: int, discount: float = 1.0
) -> Tensor:
    """A_proc[t] = sum of gamma^n r~_k over the steps from the token's own on.

    n is the number of steps between the token's and the rewarded one; the paper's `discount` gamma
    is 1, and 0 leaves each reward in its own step. (..., A) in the dtype of `normalised`, which is
    (..., K) r~ and 0 where there is no step: constant inside a step, 0 after the last step's end.
    """
    of_steps = sum_to_come(normalised, discount)
    values = pad(of_steps, (0, 1))
    return per_token(values, step_ends, step_mask, tokens)


def sum_to_come(rewards: Tensor, discount: float = 1.0) -> Tensor:
    """(..., K) each step's reward, plus the later ones times `discount` per step in between."""
    if discount == 1.0:
        return rewards.flip(-1).cumsum(-1).flip(-1)
    sums = rewards.clone()
    for step in reversed(range(rewards.shape[-1] - 1)):
        sums[..., step] += discount * sums[..., step + 1]
    return sums


def per_token(values: Tensor, step_ends: Tensor, step_mask: Tensor, tokens: int) -> Tensor:
    """(..., A) the value of each token's step, from (..., K+1) values.

    Tokens after the last step get the value behind the last step's.
    """
    *leading, count = values.shape
    rows = math.prod(leading)
    ends = torch.where(step_mask, step_ends, tokens)
    ends = ends.reshape(rows, count - 1)
    # Number of steps that ended before token t, which is the index of the step that t lies in.
    positions = torch.arange(tokens, device=ends.device)
    positions = positions.expand(rows, -1).contiguous()
    step_of_token = torch.searchsorted(ends.contiguous(), positions)
    of_tokens = values.reshape(rows, count).gather(-1, step_of_token)
    return of_tokens.view(*leading, tokens)


def unified_advantages(
    outcome: Tensor, process: Tensor | None, outcome_weight: float, process_weight: float
) -> Tensor:
    """A[t] = beta A_out + theta [correct] A_proc[t].

    This is the one place where both terms meet. Takes and returns a value of each token, in any
    shape, in the dtype of `outcome`. `process` is 0 for incorrect responses, and weighted in its
    own dtype before it is added; without it the result is `outcome_weight * outcome`, bit for bit.
    """
    advantages = outcome_weight * outcome
    if process is None:
        return advantages
    return advantages + (process_weight * process).to(outcome.dtype)


@dataclass(frozen=True)
class AdvantageTerms:
    """The advantages of all generated tokens of a batch, and the two terms that they consist of.

    All are (tokens,); `outcome` and `process` are not weighted.
    """

    advantages: Tensor
    outcome: Tensor
    process: Tensor


def group_advantages(
    batch: StepBatch, rewards: Tensor, process: Tensor | None, coefficients: Coefficients
) -> list[Tensor]:
    """The unified advantage of every token: a tensor for each response, group by group.

    A tensor has `length` float64 values. `rewards` are (G, N), of the outcome; `process` is (G, N,
    A), or None.
    """
    longest = int(batch.lengths.max())
    outcome = outcome_advantages(rewards, coefficients.eps)
    outcome = outcome.unsqueeze(-1).expand(-1, -1, longest)
    advantages = unified_advantages(
        outcome, process, coefficients.outcome_weight, coefficients.process_weight
    )
    rows = advantages.flatten(0, 1)
    lengths = batch.lengths.flatten().tolist()
    return [row[:length].clone() for row, length in zip(rows, lengths, strict=True)]


class Moments(NamedTuple):
    """Statistics of rows of values; all (..., 1)."""

    mean: Tensor
    deviation: Tensor
    spreads: Tensor  # bool, whether the row has two values, and a deviation above float noise


def moments(
    values: Tensor, mask: Tensor | None = None, eps: float = 1e-6, unbiased: bool = True
) -> Moments:
    """Mean and standard deviation over the last dimension, of the values where `mask` is True.

    (..., 1) each, from (..., n) values and a mask of that shape.
    """
    if mask is None:
        mask = torch.ones_like(values, dtype=torch.bool)
    count = mask.sum(-1, keepdim=True)
    present = torch.where(mask, values, 0.0)
    total = present.sum(-1, keepdim=True)
    mean = total / count.clamp(min=1)
    centred = torch.where(mask, values - mean, 0.0)
    degrees = count - 1 if unbiased else count
    squares = centred.square().sum(-1, keepdim=True)
    variance = squares / degrees.clamp(min=1)
    deviation = variance.sqrt()
    noise = eps * mean.abs().clamp(min=1)
    spreads = (count > 1) & (deviation > noise)
    return Moments(mean, deviation, spreads)
