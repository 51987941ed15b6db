"""Files that a run leaves beside its checkpoints: one line of metrics a step, and tables of rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openrlhf_swap.files import read_rows, to_line, write_rows

if TYPE_CHECKING:  # the first brings torch, and a command reads the names of the files before it needs any of that
    from openrlhf_swap.algorithm.advantages import StepSignals
    from openrlhf_swap.algorithm.batch import StepBatch
    from openrlhf_swap.rollouts.reader import StepReader
    from openrlhf_swap.rollouts.rollout import Rollout

METRICS, EVALUATIONS = "metrics.jsonl", "evaluations.jsonl"


def append_metrics(folder: Path, step: int, metrics: dict[str, Any], file: str = METRICS) -> None:
    """Append one line to `metrics.jsonl` or another file. Numbers only; a non-finite one becomes null."""
    numbers = {
        name: (float(value) if math.isfinite(value) else None)
        for name, value in sorted(metrics.items())
        if isinstance(value, int | float)
    }
    with open(folder / file, "a", encoding="utf-8") as lines:
        lines.write(to_line({"step": step, **numbers}))


def drop_metrics_after(folder: Path, step: int) -> None:
    """Remove from `metrics.jsonl` and `evaluations.jsonl` the steps that a run resumed after `step` will repeat.

    A run from the beginning moves the lines of the previous one to `metrics.before.jsonl` and the like, of the one
    after that to `metrics.before2.jsonl`, and so on: nothing is lost.
    """
    paths = [path for path in (folder / METRICS, folder / EVALUATIONS) if path.exists()]
    if step == 0:
        _move(folder, paths)
        return
    for path in paths:
        write_rows(path, [row for row in read_rows(path) if row["step"] <= step])


def _move(folder: Path, paths: Sequence[Path]) -> None:
    """Rename the files of one run alike, under names that neither of a run's files has had here."""
    ending = next(
        ending
        for ending in (f".before{number if number > 1 else ''}.jsonl" for number in count(1))
        if not any((folder / name).with_suffix(ending).exists() for name in (METRICS, EVALUATIONS))
    )
    for path in paths:
        path.replace(path.with_suffix(ending))


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
    """Describe the first groups of a batch: each response, and what each of its steps earned and paid.

    Scores are there for correct responses only, because no others are scored.

    Args:
        groups: the rollouts.
        batch: their markers, or those of more groups.
        signals: what was computed from these.
        reader: of the tokenizer.
        tokens_left: what the policy's states predicted to be left at each response's prompt and steps, where they did.
    """
    rows, number = [], 0
    for g, group in enumerate(groups):
        for n, rollout in enumerate(group):
            left = None if tokens_left is None else tokens_left[number]
            number += 1
            scored = len(rollout.answer_logprobs) > 0
            texts = reader.step_texts(rollout.response_ids, rollout.step_ends) if scored or left else []
            steps: list[dict[str, Any]] = [{"text": text, "end": rollout.step_ends[k]} for k, text in enumerate(texts)]
            for k, step in enumerate(steps):
                if scored:
                    step |= _scores(rollout, signals, (g, n, k))
                if left:
                    step["tokens_left"] = left[k + 1]
            rows.append(
                {
                    "group": g,
                    "prompt": rollout.prompt,
                    "response": reader.text(rollout.response_ids),
                    "answer": rollout.answer,
                    "reward": rollout.reward,
                    "length": len(rollout.response_ids),
                    "penalty_mass": signals.penalty_mass[g, n].item(),
                    "answer_logprob_0": rollout.answer_logprobs[0] if scored else None,
                    **({"tokens_left_0": left[0]} if left else {}),
                    "steps": steps,
                }
            )
    return rows


def _scores(rollout: Rollout, signals: StepSignals, place: tuple[int, int, int]) -> dict[str, float]:
    """What a step's scores say."""
    return {
        "answer_logprob": rollout.answer_logprobs[place[-1] + 1],
        "gain": signals.gains[place].item(),
        "local_gain": signals.local_gains[place].item(),
        "penalty": signals.penalties[place].item(),
        "reward": signals.normalised[place].item(),
    }
