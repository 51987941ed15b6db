"""Files that a run leaves beside its checkpoints: one line of metrics a step, and tables of rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
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

    A run from the beginning moves both to `metrics.before.jsonl` and the like.
    """
    for path in filter(Path.exists, (folder / METRICS, folder / EVALUATIONS)):
        if step == 0:
            path.replace(path.with_suffix(".before.jsonl"))
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
    """Describe the first groups of a batch: each response, and what each of its steps earned and paid.

    Scores are there for correct responses only, because no others are scored. `batch` and `signals` may be those of
    more groups; `tokens_left` is what the policy's states predicted to be left at each response's prompt and steps,
    where they did.
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
            texts = reader.step_texts(rollout.response_ids, rollout.step_ends) if scores or left else []
            row["steps"] = [{"text": text, "end": rollout.step_ends[k]} for k, text in enumerate(texts)]
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
