"""Measures of an evaluation's samples, per benchmark."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from pathlib import Path
from statistics import fmean, median

import numpy as np

from openrlhf_swap.data.benchmarks import BENCHMARKS
from openrlhf_swap.evaluation.samples import forced_path, graded_benchmarks, graded_samples, no_samples, read_problems
from openrlhf_swap.evaluation.stats import Floats, area_under, bootstrap_interval, majority_is_correct, pass_at_k
from openrlhf_swap.files import Row, read_rows
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.notation import canonical

_FRACTION = re.compile(r"\\[dt]frac(?![A-Za-z])")
_LOOSE_SPACE = re.compile(r"(?<!\d) | (?!\d)")  # between two digits it separates: 1 1/2 is not 11/2


@dataclass
class Measures:
    """Measures of one benchmark's samples.

    Attributes:
        problems: (P,) texts, in order; ids where a folder lacks the file of its problems.
        accuracy: (P,) share of correct samples per problem.
        tokens: (P,) mean tokens per sample of each problem.
        values: named measures, see `_values`.
    """

    problems: list[str]
    accuracy: Floats
    tokens: Floats
    values: dict[str, float]


Evaluation = dict[str, Measures]


def measure_evaluation(folder: Path) -> Evaluation:
    """Measures of every benchmark in an evaluation's folder; raises DataError if there is no graded sample."""
    known = list(BENCHMARKS)
    names = sorted(graded_benchmarks(folder), key=lambda name: known.index(name) if name in known else len(known))
    measures = {name: measured for name in names if (measured := measure_benchmark(folder, name)).problems}
    if not measures:
        raise no_samples(f"{folder} holds no graded samples")
    return measures


def measure_evaluations(folders: Sequence[Path]) -> dict[str, Evaluation]:
    """Measures of several evaluations, keyed by folder name, or by path where two folders share a name."""
    names = [folder.name for folder in folders]
    return {
        folder.name if names.count(folder.name) == 1 else str(folder): measure_evaluation(folder) for folder in folders
    }


def measure_benchmark(folder: Path, name: str) -> Measures:
    """Measures of one benchmark; only numbers of its samples are kept in memory."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for sample, grade in graded_samples(folder, name):
        groups[sample["id"]].append({**sample, **grade, "text": None})
    accuracy = np.array([fmean(row["correct"] for row in group) for group in groups.values()])
    tokens = np.array([fmean(row["tokens"] for row in group) for group in groups.values()])
    values = {**_values(list(groups.values()), accuracy, tokens), **areas(folder, name)} if groups else {}
    asked = read_problems(folder, name)
    problems = [asked.get(problem, {}).get("problem", problem) for problem in groups]
    return Measures(problems, accuracy, tokens, {name: float(value) for name, value in values.items()})


def areas(folder: Path, name: str) -> dict[str, float]:
    """The areas under the accuracy curves over budgets of thought, with the range of the budgets.

    For each way to end a thought (`evaluation.forced --by`) that has at least two budgets: `area_cut`,
    `budget_cut_least` and `budget_cut_most`, or the same with `vllm`. A budget of 0 has no place on a logarithmic axis
    and does not count.
    """
    curves: dict[str, dict[int, float]] = defaultdict(dict)
    for row in read_rows(forced_path(folder, name)):
        if row["budget"] > 0:
            curves[row.get("by", "cut")][row["budget"]] = row["accuracy"]
    values: dict[str, float] = {}
    for by, curve in curves.items():
        if len(curve) > 1:
            values |= {f"budget_{by}_least": min(curve), f"budget_{by}_most": max(curve)}
            values[f"area_{by}"] = area_under(list(curve), list(curve.values()))
    return values


def vote(answer: str | None) -> str | None:
    r"""An answer as the majority vote counts it: `\dfrac{1}{2}`, `\frac{1}{2}` and `½` are the same, `0.5` is not."""
    if answer is None:
        return None
    plain = " ".join(_FRACTION.sub(r"\\frac", canonical(strip_answer(answer))).split())
    return _LOOSE_SPACE.sub("", plain)


def _values(groups: Sequence[Sequence[Row]], accuracy: Floats, tokens: Floats) -> dict[str, float]:
    """The named measures of a benchmark; `groups` holds the samples of each problem."""
    rows = [row for group in groups for row in group]
    samples = min(map(len, groups))
    voters = [sorted(group, key=lambda row: row["sample"])[:samples] for group in groups]  # k of them, as maj@k says
    low, high = bootstrap_interval(accuracy)
    statuses = Counter(row["status"] for row in rows)
    return {
        "problems": len(groups),
        "samples": samples,
        "accuracy": accuracy.mean(),
        "accuracy_low": low,
        "accuracy_high": high,
        **_mean_score(rows),
        f"pass@{samples}": fmean(pass_at_k(sum(row["correct"] for row in g), len(g), samples) for g in groups),
        f"maj@{samples}": fmean(
            majority_is_correct([vote(row["answer"]) for row in g], [row["correct"] for row in g]) for g in voters
        ),
        "tokens": tokens.mean(),
        "tokens_median": median(row["tokens"] for row in rows),
        "tokens_correct": fmean([row["tokens"] for row in rows if row["correct"]] or [nan]),
        "tokens_wrong": fmean([row["tokens"] for row in rows if not row["correct"]] or [nan]),
        "tokens_thinking": fmean(row["thinking_tokens"] for row in rows),
        "tokens_answer": fmean(row["tokens"] - row["thinking_tokens"] for row in rows),
        "truncated": fmean(row["truncated"] for row in rows),
        "unclosed": fmean(row["thinking_tokens"] == row["tokens"] for row in rows),
        "accuracy_per_1k_tokens": accuracy.mean() / (tokens.mean() / 1000),
        **{f"grader_{status}": statuses[status] / len(rows) for status in sorted(statuses) if status != "ok"},
    }


def _mean_score(rows: Sequence[Row]) -> dict[str, float]:
    """The mean score, where a verifier gave some between 0 and 1."""
    if not any("score" in row for row in rows):
        return {}
    return {"score": fmean(row.get("score", float(row["correct"])) for row in rows)}
