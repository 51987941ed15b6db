"""A training step as scalar metrics; `metric_names` has their names and meanings."""

from __future__ import annotations

from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepSignals
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.penalty import target_lengths

StepMetrics = dict[str, float]
HIGH_GAIN = 0.5  # nats; the paper's threshold for a high-gain step
SCORE_NOISE = 0.02  # nats; standard deviation of a difference of two scores in bfloat16


def step_metrics(
    batch: StepBatch,
    signals: StepSignals,
    advantages: Tensor,
    outcome: Tensor,
    process: Tensor,
    score_seconds: float,
    process_weight: float,
) -> StepMetrics:
    """Summarise one batch.

    Args:
        batch: markers of all groups.
        signals: the step signals computed from them.
        advantages: (tokens,) unified advantage of every action token of the batch.
        outcome: (tokens,) its outcome part, unweighted.
        process: (tokens,) its process part, unweighted.
        score_seconds: time of scoring on top of the log-probabilities.
        process_weight: theta.

    Returns:
        Finite numbers; a mean over nothing (no correct response, no step) is left out.
    """
    correct, steps = batch.correct, batch.step_mask
    targets = target_lengths(batch.lengths, correct)
    lengths = batch.lengths.double()
    first = batch.answer_logprobs[..., 0][steps.any(-1)]
    last = batch.answer_logprobs.gather(-1, steps.sum(-1, keepdim=True)).squeeze(-1)[steps.any(-1)]
    gains, changes = signals.gains[steps], signals.local_gains[steps]
    over_target = lengths > targets.unsqueeze(-1)
    values = {
        "accuracy": correct.double(),
        "response_length": lengths,
        "response_length_correct": lengths[correct],
        "response_length_wrong": lengths[~correct],
        "target_length": targets[~targets.isnan()],
        "over_target_frac": over_target[correct].double(),
        "penalty_mass": signals.penalty_mass[correct],
        "weights_from_uniform": distances_from_uniform(signals.penalties, steps),
        "steps_per_rollout": steps.sum(-1)[correct].double(),
        "gain_mean": gains,
        "gain_zero_frac": (gains == 0).double(),
        "gain_high_frac": (gains > HIGH_GAIN).double(),
        "local_gain_mean": changes,
        "local_gain_absmean": changes.abs(),
        "answer_logprob_first": first,
        "answer_logprob_last": last,
        "adv_outcome_absmean": outcome.abs(),
        "adv_process_absmean": process.abs(),
        "adv_negative_frac": (advantages < 0).double(),
        "groups_no_correct_frac": (~correct.any(-1)).double(),
        "groups_all_correct_frac": correct.all(-1).double(),
        "groups_without_excess_frac": (signals.penalty_mass == 0).all(-1)[correct.any(-1)].double(),
        **_prices(signals, process_weight),
    }
    metrics = {f"swap/{name}": value.mean().item() for name, value in values.items() if value.numel()}
    if len(gains) > 1:
        metrics["swap/gain_std"] = gains.std().item()
        metrics["swap/local_gain_std"] = changes.std().item()
    return {**metrics, **_spread(lengths), "swap/score_seconds": score_seconds}


def distances_from_uniform(penalties: Tensor, step_mask: Tensor) -> Tensor:
    """Of each penalised response, the share of its penalty that uniform weights would place on other steps.

    The total variation distance between w and uniform weights.

    Args:
        penalties: (..., K) P w_k.
        step_mask: (..., K) bool.

    Returns:
        (responses,) at least 0 and below 1, of those with a penalty on at least two steps.
    """
    mass = penalties.sum(-1, keepdim=True)
    chosen = (mass[..., 0] > 0) & (step_mask.sum(-1) > 1)
    existing = step_mask[chosen].double()
    uniform = existing / existing.sum(-1, keepdim=True)
    return (penalties[chosen] / mass[chosen] - uniform).abs().sum(-1) / 2


def _spread(lengths: Tensor) -> StepMetrics:
    quantiles = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    spread = {f"length/{name}": lengths.quantile(share).item() for name, share in quantiles.items()}
    return {**spread, "length/std": lengths.std().item()}


def _prices(signals: StepSignals, process_weight: float) -> dict[str, Tensor]:
    """What the normalisation subtracts from every step, over the groups whose steps get a signal."""
    signalled = ~signals.price.isnan()
    prices = signals.price[signalled]
    return {
        "groups_of_noise_frac": (signals.deviation[signalled] < SCORE_NOISE).double(),
        "step_price": prices,
        # In a group of N with one incorrect response, correct and incorrect ones differ by sqrt(N) in A_out.
        "step_break_even": process_weight * prices / signals.penalty_mass.shape[-1] ** 0.5,
    }
