"""The tables of rollouts of a run, and the metrics of docs/use/metrics.md."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from statistics import fmean
from time import monotonic
from types import SimpleNamespace
from typing import TYPE_CHECKING

from openrlhf_swap.algorithm.known import known_in
from openrlhf_swap.algorithm.signals import SIGNALS, numbers_of
from openrlhf_swap.files import Row, free_name, read_rows, replacing, to_line, write_rows
from openrlhf_swap.process.console import say
from openrlhf_swap.rewards.verifiers import UNGRADED
from openrlhf_swap.runs.diagnostics import is_looping, length_correctness

if TYPE_CHECKING:  # the names are read without torch
    from torch import Tensor

    from openrlhf_swap.algorithm.advantages import AdvantageTerms, StepCredit
    from openrlhf_swap.algorithm.batch import StepBatch
    from openrlhf_swap.objectives.base import Objective
    from openrlhf_swap.rollouts.reader import StepReader
    from openrlhf_swap.rollouts.rollout import Batch, Rollout

Metrics = dict[str, float]
HIGH_GAIN = 0.5  # nats; the paper's threshold for a high-gain step
SHOWN_TURNS = 8  # turns whose share of the penalty is a metric
LEAST_NEED = 0.01  # nats per token; a step with less need is one that nobody needs
SCORE_NOISE = 0.02  # nats; standard deviation of a difference of two scores in bfloat16

LENGTH_QUANTILES = {"p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
# Column of a step in the table of rollouts -> the field of `StepCredit` in it.
STEP_COLUMNS = {
    "gain": "gains",
    "local_gain": "local_gains",
    "penalty": "penalties",
    "baseline": "step_baselines",
    "reward": "normalised",
}
METRICS = "metrics.jsonl"
EVALUATIONS = "evaluations.jsonl"
# Phase of a training step -> the metric of its seconds.
STEP_PHASES = {
    "generate": "timing/generation",
    "score": "timing/score",
    "update": "timing/ppo_train",
    "sync": "timing/broadcast",
    "total": "timing/step_total",
}


def batch_metrics(batch: Batch, terms: AdvantageTerms, objective: Objective) -> Metrics:
    """The metrics of a batch: OpenRLHF's of its rewards and lengths, ours, the objective's."""
    rewards = batch.rewards.float()
    lengths = batch.lengths.float()
    looping = batch.each(lambda rollout: is_looping(rollout.response_ids))
    forced = batch.each(lambda rollout: len(rollout.closing))
    metrics = {
        "rollout/reward_mean": rewards.mean().item(),
        "rollout/reward_std": rewards.std().item(),
        "rollout/response_length_mean": lengths.mean().item(),
        "rollout/truncated_rate": batch.truncated.float().mean().item(),
        "rollout/looping_rate": looping.mean().item(),
        "rollout/num_samples": float(rewards.numel()),
        "swap/thought_unclosed_frac": 1 - batch.closed.double().mean().item(),
        "swap/thought_forced_frac": forced.bool().double().mean().item(),
        "swap/forced_tokens": forced.mean().item(),
    }
    metrics |= step_metrics(batch, terms, objective.process_weight)
    metrics |= turn_metrics(batch)
    return metrics | objective.metrics()


def step_metrics(batch: Batch, terms: AdvantageTerms, process_weight: float) -> Metrics:
    """Summarise the steps of a batch in finite numbers; a mean over nothing is left out.

    `process_weight` is theta.
    """
    steps = batch.steps
    credit = batch.credit
    # Where the baseline is shared by weights, w matters in responses without a penalty, too.
    shared = credit.weights if batch.coefficients.baseline_by_weights else credit.penalties
    means = {
        **_of_lengths(steps),
        "length/correctness_correlation": _correlations(steps),
        **_of_groups(steps, credit, process_weight),
        **_of_steps(steps, credit),
        "swap/weights_from_uniform": distances_from_uniform(shared, steps.step_mask),
        "swap/adv_outcome_absmean": terms.outcome.abs(),
        "swap/adv_process_absmean": terms.process.abs(),
        "swap/adv_negative_frac": terms.advantages < 0,
    }
    metrics = {name: values.double().mean() for name, values in means.items() if values.numel()}
    lengths = steps.lengths.double()
    for name, share in LENGTH_QUANTILES.items():
        metrics[f"length/{name}"] = lengths.quantile(share)
    metrics["length/std"] = lengths.std()
    gains = credit.gains[steps.step_mask]
    if len(gains) > 1:
        metrics["swap/gain_std"] = gains.std()
        metrics["swap/local_gain_std"] = credit.local_gains[steps.step_mask].std()
    return {name: value.item() for name, value in metrics.items()}


def _of_lengths(batch: StepBatch) -> dict[str, Tensor]:
    from openrlhf_swap.algorithm.advantages import target_lengths

    lengths = batch.lengths.double()
    targets = target_lengths(batch.lengths, batch.correct)
    is_over = lengths > targets.unsqueeze(-1)
    return {
        "length/mean": lengths,
        "length/correct": lengths[batch.correct],
        "length/wrong": lengths[~batch.correct],
        "length/target": targets[~targets.isnan()],
        "length/over_target_frac": is_over[batch.correct],
    }


def _correlations(batch: StepBatch) -> Tensor:
    """The correlation of length and correctness in each group that has one, float64."""
    groups = zip(batch.lengths.tolist(), batch.correct.tolist(), strict=True)
    found = [length_correctness(lengths, correct) for lengths, correct in groups]
    return batch.answer_logprobs.new_tensor([value for value in found if value is not None])


def _of_groups(batch: StepBatch, credit: StepCredit, process_weight: float) -> dict[str, Tensor]:
    correct = batch.correct
    solved = correct.any(-1)
    signalled = ~credit.baseline.isnan()  # groups whose steps get a signal
    baselines = credit.baseline[signalled]
    # In a group of N with one incorrect response, correct and incorrect ones differ by sqrt(N) in
    # A_out.
    difference = correct.shape[-1] ** 0.5
    return {
        "swap/accuracy": correct,
        "swap/groups_all_correct_frac": correct.all(-1),
        "swap/groups_no_correct_frac": ~solved,
        "swap/groups_without_excess_frac": (credit.penalty_mass == 0).all(-1)[solved],
        "swap/groups_of_noise_frac": credit.deviation[signalled] < SCORE_NOISE,
        "swap/step_price": baselines,
        "swap/step_price_negative_frac": baselines < 0,
        "swap/step_break_even": process_weight * baselines / difference,
        "swap/penalty_mass": credit.penalty_mass[correct],
    }


def _of_steps(batch: StepBatch, credit: StepCredit) -> dict[str, Tensor]:
    from torch.nn.functional import pad

    steps = batch.step_mask
    count = steps.sum(-1)
    scored = steps.any(-1)
    last = batch.answer_logprobs.gather(-1, count.unsqueeze(-1)).squeeze(-1)
    reasoning = pad(batch.step_ends + 1, (1, 0)).gather(-1, count.unsqueeze(-1)).squeeze(-1)
    gains = credit.gains[steps]
    changes = credit.local_gains[steps]
    means = {
        "length/reasoning": reasoning[scored],
        "swap/steps_per_rollout": count[batch.correct],
        "swap/one_step_frac": count[scored] == 1,
        "swap/gain_mean": gains,
        "swap/gain_zero_frac": gains == 0,
        "swap/gain_high_frac": gains > HIGH_GAIN,
        "swap/local_gain_mean": changes,
        "swap/local_gain_absmean": changes.abs(),
        "swap/answer_logprob_first": batch.answer_logprobs[..., 0][scored],
        "swap/answer_logprob_last": last[scored],
        "swap/known_after_frac": _shares_after_known(batch),
    }
    if "need" in batch.signals:
        needs = batch.signals["need"][steps]
        needs = needs[~needs.isnan()]
        means |= {"swap/need_mean": needs, "swap/need_zero_frac": needs < LEAST_NEED}
    return means


def _shares_after_known(batch: StepBatch) -> Tensor:
    """(responses,) what follows once the answer is known, of those with scored steps."""
    scored = batch.step_mask.any(-1)
    counts = batch.step_mask[scored].sum(-1).tolist()
    logprobs = batch.answer_logprobs[scored].tolist()
    ends = batch.step_ends[scored].tolist()
    shares = []
    for row, steps in enumerate(counts):
        known = known_in(logprobs[row][: steps + 1], ends[row][:steps])
        assert known is not None  # a batch has finite scores
        shares.append(known.share)
    return batch.answer_logprobs.new_tensor(shares)


def distances_from_uniform(penalties: Tensor, step_mask: Tensor) -> Tensor:
    """The total variation distance between w and uniform weights, from (..., K) w_k or P w_k.

    (responses,) at least 0 and below 1, of those with a penalty on at least two steps.
    """
    mass = penalties.sum(-1, keepdim=True)
    chosen = (mass[..., 0] > 0) & (step_mask.sum(-1) > 1)
    existing = step_mask[chosen].double()
    uniform = existing / existing.sum(-1, keepdim=True)
    weights = penalties[chosen] / mass[chosen]
    return (weights - uniform).abs().sum(-1) / 2


def turn_metrics(batch: Batch) -> Metrics:
    """Turns and observations of an agent's responses, and the turns' shares of the penalty."""
    rollouts = [rollout for group in batch.groups for rollout in group]
    if not any(rollout.observations for rollout in rollouts):
        return {}
    penalties = batch.credit.penalties.flatten(0, 1).tolist()
    by_turn: dict[int, list[float]] = {}
    for rollout, shares in zip(rollouts, penalties, strict=True):
        mass = sum(shares)
        if not mass:
            continue
        for turn in range(min(len(rollout.turns), SHOWN_TURNS)):
            by_turn.setdefault(turn + 1, []).append(0.0)
        for end, share in zip(rollout.step_ends, shares, strict=False):
            turn = bisect_right(rollout.turn_starts, end) + 1
            if turn <= SHOWN_TURNS:
                by_turn[turn][-1] += share / mass
    context_tokens: list[int] = []
    for rollout in rollouts:
        context_tokens += _context_tokens(rollout)
    metrics = {
        "swap/turns": fmean(len(rollout.turns) for rollout in rollouts),
        "swap/context_tokens": fmean(context_tokens),
    }
    if not any(rollout.starts_over for rollout in rollouts):
        observed = [sum(len(ids) for _, ids in rollout.observations) for rollout in rollouts]
        metrics["swap/observation_tokens"] = fmean(observed)
    for turn, shares in by_turn.items():
        metrics[f"swap/penalty_turn_{turn}"] = fmean(shares)
    return metrics


def _context_tokens(rollout: Rollout) -> list[int]:
    """The number of tokens that each turn of a response has read."""
    first_tokens = [0, *rollout.turn_starts]  # of the turns, in the response
    context_ends = rollout.positions[first_tokens].tolist()  # in the row, as their starts
    if not rollout.starts_over:
        return [*context_ends]
    contexts = zip(rollout.context_starts, context_ends, strict=True)
    return [end - start for start, end in contexts]


def step_line(step: int, last: int | None, metrics: Metrics) -> str:
    """A training step as one line; `last` is the number of the run's last step, if known."""
    if UNGRADED in metrics:
        metrics = {**metrics, "swap/accuracy": math.nan, "rollout/reward_mean": math.nan}

    def show(name: str, form: str) -> str:
        value = metrics.get(name, math.nan)
        return form.format(value) if math.isfinite(value) else "-"

    return (
        f"step {step}{f'/{last}' if last else ''}: accuracy {show('swap/accuracy', '{:.1%}')}, "
        f"{show('length/mean', '{:.0f}')} tokens, target {show('length/target', '{:.0f}')}, "
        f"reward {show('rollout/reward_mean', '{:z.3f}')}, {show('timing/step_total', '{:.1f}')} s"
    )


def first_step_lines(args: SimpleNamespace) -> dict[str, str]:
    """Phase of a training step -> what a start says when its first step begins it.

    The first step follows a silent minute, and may take many; later ones have a line at their end.
    """
    prompts = args.rollout.batch_size
    responses = prompts * args.rollout.n_samples_per_prompt
    lines = {
        "generation": f"first step: generating {responses} responses to {prompts} prompts",
        "make_experience": f"first step: log-probabilities and scores of {responses} responses",
        "ppo_train": f"first step: updating the policy with {responses} responses",
        "broadcast": f"first step: sending the weights to {args.vllm.num_engines} vLLM engine(s)",
    }
    if args.swap_run.reuse_logprobs:
        del lines["make_experience"]
    return lines


class StepClock:
    """Measures a step from its own creation, and the phases that the step consists of.

    `lines` has lines to print when a phase begins; a line that is printed is removed.
    """

    def __init__(self, lines: dict[str, str]) -> None:
        self._lines = lines
        self._started = monotonic()
        self._phases: Metrics = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the block, also where it ends with an error."""
        if name in self._lines:
            say(self._lines.pop(name))
        started = monotonic()
        try:
            yield
        finally:
            self._phases[f"timing/{name}"] = monotonic() - started

    def metrics(self) -> Metrics:
        """The seconds so far: of each phase, of what lies between, and of all of it."""
        total = monotonic() - self._started
        other = total - sum(self._phases.values())
        return {**self._phases, "timing/other": other, "timing/step_total": total}


def append_metrics(folder: Path, step: int, metrics: Metrics, file: str = METRICS) -> None:
    """Append the numbers among the metrics as one line; one that is not finite becomes null."""
    numbers = {
        name: (float(value) if math.isfinite(value) else None)
        for name, value in sorted(metrics.items())
        if isinstance(value, int | float)
    }
    with open(folder / file, "a", encoding="utf-8") as lines:
        lines.write(to_line({"step": step, **numbers}))


def drop_metrics_after(folder: Path, step: int) -> None:
    """Remove the lines of the steps after `step`, which a resumed run repeats, and of no step.

    A run that begins anew moves the files away.
    """
    for path in filter(Path.exists, (folder / METRICS, folder / EVALUATIONS)):
        if step == 0:
            before = path.with_suffix(".before.jsonl")
            write_rows(before, chain(read_rows(before), read_rows(path)))
            path.unlink()
        else:
            _keep_rows_until(step, path)


def _keep_rows_until(step: int, path: Path) -> None:
    """Rewrite a file of metrics row by row: a long run's takes gigabytes of memory as a whole."""
    of_no_step = 0
    with replacing(path) as kept:
        for row in read_rows(path):
            if not (isinstance(row, dict) and isinstance(row.get("step"), int)):
                of_no_step += 1
            elif row["step"] <= step:
                kept.write(to_line(row))
    if of_no_step:
        say(f"{of_no_step} rows of {path} are of no step and are removed")


def set_aside_rollouts_after(folder: Path, step: int) -> None:
    """Move the tables of rollouts of later steps away: they are not the newest of this start.

    Those of a run that begins anew get a folder of their own, `rollouts.before`; the tables of the
    steps that a resumed run repeats go to `rollouts.repeated`.
    """
    tables = sorted((folder / "rollouts").glob("step_*.jsonl"))
    later = [table for table in tables if int(table.stem.removeprefix("step_")) > step]
    if not later:
        return
    aside = folder / "rollouts.repeated"
    if step == 0:
        aside = free_name(folder / "rollouts.before")
    aside.mkdir(exist_ok=True)
    for table in later:
        table.replace(aside / table.name)


def write_rollouts(folder: Path, step: int, rows: list[Row]) -> None:
    """Write `rollouts/step_<n>.jsonl`, one response a line."""
    (folder / "rollouts").mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rollouts" / f"step_{step:06d}.jsonl", rows)


def rollout_rows(batch: Batch, count: int, reader: StepReader) -> list[Row]:
    """Describe the responses of the first `count` groups: the reward and the penalty of each step.

    Only correct responses have scores. Signals with a number for each step, such as need, stand in
    their steps by name. `known_after_steps` are the steps after which the answer is known for good,
    null for never (`algorithm.known`).
    """
    credit = batch.credit
    rows: list[Row] = []
    for g, group in enumerate(batch.groups[:count]):
        for n, rollout in enumerate(group):
            scores = rollout.answer_logprobs
            row: Row = {
                "group": g,
                "prompt": rollout.prompt,
                "response": reader.text(rollout.response_ids),
                "answer": rollout.answer,
                "reward": rollout.reward,
                "length": len(rollout.response_ids),
                "penalty_mass": credit.penalty_mass[g, n].item(),
                "answer_logprob_0": None,
            }
            if scores:
                row["answer_logprob_0"] = scores[0]
            known = known_in(scores, rollout.step_ends)
            if known is not None:
                row["known_after_steps"] = known.steps
            if rollout.observations:
                row["turns"] = _turn_rows(rollout, reader)
            row["steps"] = []
            if scores or _by_step(rollout):
                row["steps"] = _step_rows(rollout, credit, (g, n), reader)
            rows.append(row)
    return rows


def _turn_rows(rollout: Rollout, reader: StepReader) -> list[dict[str, str]]:
    """The text of each turn, and of what the environment wrote behind it.

    Without old thoughts that is the whole context of the next turn.
    """
    name = "next_context" if rollout.starts_over else "observation"
    seen = [*(reader.text(ids) for _, ids in rollout.observations), ""]
    actions = map(reader.text, rollout.turns)
    return [{"action": action, name: text} for action, text in zip(actions, seen, strict=True)]


def _by_step(rollout: Rollout) -> dict[str, list[float | None]]:
    """The signals of a response that are a number for each step."""
    signals = rollout.signals.items()
    return {name: numbers_of(values) for name, values in signals if SIGNALS[name].per == "step"}


def _step_rows(
    rollout: Rollout, credit: StepCredit, place: tuple[int, int], reader: StepReader
) -> list[Row]:
    by_step = _by_step(rollout)
    rows = []
    for k, text in enumerate(reader.step_texts(rollout.response_ids, rollout.step_ends)):
        row: Row = {"text": text, "end": rollout.step_ends[k]}
        if rollout.answer_logprobs:
            row["answer_logprob"] = rollout.answer_logprobs[k + 1]
            for name, attribute in STEP_COLUMNS.items():
                row[name] = getattr(credit, attribute)[place][k].item()
        for name, values in by_step.items():
            row[name] = values[k]
        rows.append(row)
    return rows
