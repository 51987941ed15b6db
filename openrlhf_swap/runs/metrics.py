"""What a run writes of its steps: metrics, which docs/use/metrics.md explains, and tables of
rollouts.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from openrlhf_swap.files import read_rows, to_line, write_rows

if TYPE_CHECKING:  # the names are read without torch
    from torch import Tensor

    from openrlhf_swap.algorithm.advantages import StepSignals
    from openrlhf_swap.algorithm.batch import StepBatch
    from openrlhf_swap.rollouts.rollout import Rollout, StepReader

HIGH_GAIN = 0.5  # nats; the paper's threshold for a high-gain step
SHOWN_TURNS = 8  # turns whose share of the penalty is a metric
SCORE_NOISE = 0.02  # nats; standard deviation of a difference of two scores in bfloat16

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"
# Phase of a training step -> the metric of its seconds.
STEP_PHASES = {
    "generate": "timing/generation",
    "score": "timing/score",
    "update": "timing/ppo_train",
    "sync": "timing/broadcast",
    "total": "timing/step_total",
}


def step_metrics(
    batch: StepBatch,
    signals: StepSignals,
    advantages: Tensor,
    outcome: Tensor,
    process: Tensor,
    process_weight: float,
) -> dict[str, float]:
    """Summarise one batch in finite numbers; a mean over nothing (no correct response, no step) is
    left out.

    `advantages` are the (tokens,) unified advantages of every action token, `outcome` and `process`
    its parts, unweighted; `process_weight` is theta.
    """
    from openrlhf_swap.algorithm.advantages import target_lengths

    correct, steps, lengths = batch.correct, batch.step_mask, batch.lengths.double()
    targets = target_lengths(batch.lengths, correct)
    scored, last = steps.any(-1), steps.sum(-1, keepdim=True)
    gains, changes = signals.gains[steps], signals.local_gains[steps]
    signalled = ~signals.price.isnan()  # groups whose steps get a signal
    prices = signals.price[signalled]
    means = {
        "length/mean": lengths,
        "length/correct": lengths[correct],
        "length/wrong": lengths[~correct],
        "length/target": targets[~targets.isnan()],
        "length/over_target_frac": (lengths > targets.unsqueeze(-1))[correct],
        "swap/accuracy": correct,
        "swap/groups_all_correct_frac": correct.all(-1),
        "swap/groups_no_correct_frac": ~correct.any(-1),
        "swap/groups_without_excess_frac": (signals.penalty_mass == 0).all(-1)[correct.any(-1)],
        "swap/groups_of_noise_frac": signals.deviation[signalled] < SCORE_NOISE,
        "swap/step_price": prices,
        "swap/step_price_negative_frac": prices < 0,
        # In a group of N with one incorrect response, correct and incorrect ones differ by sqrt(N)
        # in A_out.
        "swap/step_break_even": process_weight * prices / signals.penalty_mass.shape[-1] ** 0.5,
        "swap/penalty_mass": signals.penalty_mass[correct],
        "swap/weights_from_uniform": distances_from_uniform(signals.penalties, steps),
        "swap/steps_per_rollout": steps.sum(-1)[correct],
        "swap/gain_mean": gains,
        "swap/gain_zero_frac": gains == 0,
        "swap/gain_high_frac": gains > HIGH_GAIN,
        "swap/local_gain_mean": changes,
        "swap/local_gain_absmean": changes.abs(),
        "swap/answer_logprob_first": batch.answer_logprobs[..., 0][scored],
        "swap/answer_logprob_last": batch.answer_logprobs.gather(-1, last).squeeze(-1)[scored],
        "swap/adv_outcome_absmean": outcome.abs(),
        "swap/adv_process_absmean": process.abs(),
        "swap/adv_negative_frac": advantages < 0,
    }
    metrics = {name: values.double().mean() for name, values in means.items() if values.numel()}
    for name, share in (("p10", 0.1), ("p50", 0.5), ("p90", 0.9), ("max", 1.0)):
        metrics[f"length/{name}"] = lengths.quantile(share)
    metrics["length/std"] = lengths.std()
    if len(gains) > 1:
        metrics |= {"swap/gain_std": gains.std(), "swap/local_gain_std": changes.std()}
    return {name: value.item() for name, value in metrics.items()}


def distances_from_uniform(penalties: Tensor, step_mask: Tensor) -> Tensor:
    """The total variation distance between w and uniform weights, from (..., K) P w_k.

    (responses,) at least 0 and below 1, of those with a penalty on at least two steps.
    """
    mass = penalties.sum(-1, keepdim=True)
    chosen = (mass[..., 0] > 0) & (step_mask.sum(-1) > 1)
    existing = step_mask[chosen].double()
    uniform = existing / existing.sum(-1, keepdim=True)
    return (penalties[chosen] / mass[chosen] - uniform).abs().sum(-1) / 2


def turn_metrics(groups: Sequence[Sequence[Rollout]], penalties: Tensor) -> dict[str, float]:
    """Turns and observations of an agent's responses, and which turns pay, from (G, N, K) P w_k."""
    rollouts = [rollout for group in groups for rollout in group]
    if not any(rollout.observations for rollout in rollouts):
        return {}
    paid: dict[int, list[float]] = {}
    for rollout, shares in zip(rollouts, penalties.flatten(0, 1).tolist(), strict=True):
        if (mass := sum(shares)) > 0:
            for turn in range(min(len(rollout.turns), SHOWN_TURNS)):
                paid.setdefault(turn + 1, []).append(0.0)
            for end, share in zip(rollout.step_ends, shares, strict=False):
                turn = bisect_right(rollout.turn_starts, end) + 1
                if turn <= SHOWN_TURNS:
                    paid[turn][-1] += share / mass
    metrics = {
        "swap/turns": fmean(len(rollout.turns) for rollout in rollouts),
        "swap/observation_tokens": fmean(
            sum(len(ids) for _, ids in rollout.observations) for rollout in rollouts
        ),
    }
    return metrics | {f"swap/penalty_turn_{turn}": fmean(shares) for turn, shares in paid.items()}


def step_line(step: int, last: int | None, metrics: dict[str, Any]) -> str:
    """A training step as one line; `last` is the number of the run's last step, if known."""

    def show(name: str, form: str) -> str:
        value = metrics.get(name, math.nan)
        return form.format(value) if math.isfinite(value) else "-"

    return (
        f"step {step}{f'/{last}' if last else ''}: accuracy {show('swap/accuracy', '{:.1%}')}, "
        f"{show('length/mean', '{:.0f}')} tokens, target {show('length/target', '{:.0f}')}, "
        f"reward {show('rollout/reward_mean', '{:z.3f}')}, {show('timing/step_total', '{:.1f}')} s"
    )


def append_metrics(folder: Path, step: int, metrics: dict[str, Any], file: str = METRICS) -> None:
    """Append one line to `metrics.jsonl` or another file. Numbers only; a non-finite one becomes
    null.
    """
    numbers = {
        name: (float(value) if math.isfinite(value) else None)
        for name, value in sorted(metrics.items())
        if isinstance(value, int | float)
    }
    with open(folder / file, "a", encoding="utf-8") as lines:
        lines.write(to_line({"step": step, **numbers}))


def drop_metrics_after(folder: Path, step: int) -> None:
    """Remove the steps that a run resumed after `step` will repeat; from the beginning, move the
    files away.
    """
    for path in filter(Path.exists, (folder / METRICS, folder / EVALUATIONS)):
        if step == 0:
            before = path.with_suffix(".before.jsonl")
            write_rows(before, [*read_rows(before), *read_rows(path)])
            path.unlink()
        else:
            write_rows(path, [row for row in read_rows(path) if row["step"] <= step])


def write_rollouts(folder: Path, step: int, rows: list[dict[str, Any]]) -> None:
    """Write `rollouts/step_<n>.jsonl`, one response a line."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rollouts" / f"step_{step:06d}.jsonl", rows)


def rollout_rows(
    groups: Sequence[Sequence[Rollout]],
    batch: StepBatch,
    signals: StepSignals,
    reader: StepReader,
    tokens_left: Sequence[Sequence[float]] | None = None,
) -> list[dict[str, Any]]:
    """Describe the first groups of a batch: each response, and what each of its steps earned and
    paid.

    Only correct responses have scores. `batch` and `signals` may be those of more groups;
    `tokens_left` is what the policy's states predicted to be left at each response's prompt and
    steps, where they did.
    """
    rows: list[dict[str, Any]] = []
    for g, group in enumerate(groups):
        for n, rollout in enumerate(group):
            left = tokens_left[len(rows)] if tokens_left else []
            scores = rollout.answer_logprobs
            row: dict[str, Any] = {
                "group": g,
                "prompt": rollout.prompt,
                "response": reader.text(rollout.response_ids),
                "answer": rollout.answer,
                "reward": rollout.reward,
                "length": len(rollout.response_ids),
                "penalty_mass": signals.penalty_mass[g, n].item(),
                "answer_logprob_0": scores[0] if scores else None,
            }
            if rollout.observations:
                seen = [*(reader.text(ids) for _, ids in rollout.observations), ""]
                turns = zip(map(reader.text, rollout.turns), seen, strict=True)
                row["turns"] = [{"action": action, "observation": text} for action, text in turns]
            if left:
                row["tokens_left_0"] = left[0]
            texts = (
                reader.step_texts(rollout.response_ids, rollout.step_ends) if scores or left else []
            )
            row["steps"] = [
                {"text": text, "end": rollout.step_ends[k]} for k, text in enumerate(texts)
            ]
            for k, step in enumerate(row["steps"]):
                if scores:
                    step |= {
                        "answer_logprob": scores[k + 1],
                        "gain": signals.gains[g, n, k].item(),
                        "local_gain": signals.local_gains[g, n, k].item(),
                        "penalty": signals.penalties[g, n, k].item(),
                        "price": signals.charges[g, n, k].item(),
                        "reward": signals.normalised[g, n, k].item(),
                    }
                if left:
                    step["tokens_left"] = left[k + 1]
            rows.append(row)
    return rows
