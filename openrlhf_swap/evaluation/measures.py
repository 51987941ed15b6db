"""Measures of an evaluation's samples, per benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import comb
from pathlib import Path
from statistics import fmean, multimode

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from openrlhf_swap.data.benchmarks import BENCHMARKS
from openrlhf_swap.evaluation.samples import (
    graded_benchmarks,
    graded_samples,
    read_problems,
    rows_path,
)
from openrlhf_swap.files import read_rows
from openrlhf_swap.rewards import grade_answer
from openrlhf_swap.rewards.answers import strip_answer


@dataclass
class Measures:
    """Measures of one benchmark's samples.

    `problems` has P rows, in order: `problem`, its text (its id where a folder lacks the file of
    its problems), `accuracy`, the share of its correct samples, and `tokens`, their mean. `forced`
    has `accuracy` at each `budget` of thought above 0 (`eval forced`).
    """

    problems: pd.DataFrame
    values: dict[str, float]  # named measures of all samples
    samples: pd.DataFrame = field(default_factory=pd.DataFrame)  # graded, without their texts
    forced: pd.DataFrame = field(default_factory=pd.DataFrame)


Evaluation = dict[str, Measures]


def measure_evaluations(folders: Sequence[Path]) -> dict[str, Evaluation]:
    """Measures of several evaluations, keyed by folder name, or by path where two folders share a
    name.
    """
    names = [folder.name for folder in folders]
    return {
        folder.name if names.count(folder.name) == 1 else str(folder): measure_evaluation(folder)
        for folder in folders
    }


def measure_evaluation(folder: Path) -> Evaluation:
    """Measures of every benchmark in an evaluation's folder; raises DataError if there is no graded
    sample.
    """
    known = list(BENCHMARKS)
    names = sorted(
        graded_benchmarks(folder),
        key=lambda name: known.index(name) if name in known else len(known),
    )
    return {name: measure_benchmark(folder, name) for name in names}


def measure_benchmark(folder: Path, name: str) -> Measures:
    """Measures of one benchmark; only numbers of its samples are kept in memory."""
    rows = pd.DataFrame(
        [{**sample, **grade, "text": None} for sample, grade in graded_samples(folder, name)]
    )
    forced = read_forced(folder, name)
    by_problem = rows.groupby("id", sort=False)
    problems = by_problem.agg(accuracy=("correct", "mean"), tokens=("tokens", "mean")).reset_index(
        names="problem"
    )
    texts = {
        problem: row.get("problem", problem) for problem, row in read_problems(folder, name).items()
    }
    problems["problem"] = [texts.get(problem, problem) for problem in problems["problem"]]

    samples = int(by_problem.size().min())
    voters = [
        group.sort_values("sample")[:samples] for _, group in by_problem
    ]  # k of them, as maj@k says
    low, high = bootstrap_interval(problems["accuracy"].to_numpy())
    accuracy, tokens, correct = (
        problems["accuracy"].mean(),
        problems["tokens"].mean(),
        rows["correct"],
    )
    values = {
        "problems": len(problems),
        "samples": samples,
        "accuracy": accuracy,
        "accuracy_low": low,
        "accuracy_high": high,
        # The mean of what a verifier gave, where some of it is between 0 and 1.
        **(
            {"score": rows["score"].fillna(correct.astype(float)).mean()} if "score" in rows else {}
        ),
        f"pass@{samples}": by_problem["correct"]
        .agg(lambda c: pass_at_k(int(c.sum()), len(c), samples))
        .mean(),
        f"maj@{samples}": pd.Series(
            [majority_is_correct(count_votes(group), list(group["correct"])) for group in voters]
        ).mean(),
        "tokens": tokens,
        "tokens_median": rows["tokens"].median(),
        "tokens_correct": rows["tokens"][correct].mean(),
        "tokens_wrong": rows["tokens"][~correct].mean(),
        "tokens_thinking": rows["thinking_tokens"].mean(),
        "tokens_answer": (rows["tokens"] - rows["thinking_tokens"]).mean(),
        "truncated": rows["truncated"].mean(),
        "unclosed": (rows["thinking_tokens"] == rows["tokens"]).mean(),
        "accuracy_per_1k_tokens": accuracy / (tokens / 1000),
        **{
            f"grader_{status}": (rows["status"] == status).mean()
            for status in sorted({*rows["status"]} - {"ok"})
        },
        **area(forced),
    }
    return Measures(problems, {name: float(value) for name, value in values.items()}, rows, forced)


def read_forced(folder: Path, name: str) -> pd.DataFrame:
    """What `eval forced` wrote; without a budget of 0, which has no place on a logarithmic axis."""
    forced = pd.DataFrame(
        read_rows(rows_path("forced", folder, name)), columns=["budget", "accuracy"]
    )
    return forced[forced["budget"] > 0]


def area(forced: pd.DataFrame) -> dict[str, float]:
    """The area under the accuracy curve over budgets of thought, and their range; {} for less than
    two budgets.
    """
    budgets = forced["budget"]
    if budgets.nunique() < 2:
        return {}
    under = area_under(budgets.tolist(), forced["accuracy"].tolist())
    return {"area": under, "budget_least": budgets.min(), "budget_most": budgets.max()}


def count_votes(group: pd.DataFrame) -> list[str | None]:
    """The vote of each sample of a problem: answers that the grader finds equal have the same.

    Right ones were all found equal. Wrong ones are compared where they could outnumber the right
    ones together; by text alone everywhere else, as nothing depends on it.
    """
    votes = [None if pd.isna(answer) else strip_answer(answer) for answer in group["answer"]]
    right = next(
        (v for v, correct in zip(votes, group["correct"], strict=True) if correct and v), None
    )
    votes = [
        right if correct and v else v for v, correct in zip(votes, group["correct"], strict=True)
    ]
    wrong = [v for v in votes if v and v != right]
    if right is None or len(wrong) < votes.count(right):
        return votes
    same: dict[str, str] = {}  # a wrong vote -> the first one that is equal
    for text in dict.fromkeys(wrong):
        others = dict.fromkeys(same.values())
        same[text] = next(
            (other for other in others if grade_answer(f"\\boxed{{{text}}}", other).correct), text
        )
    return [same.get(v, v) if v else v for v in votes]


Floats = NDArray[np.float64]
RESAMPLES = 10_000


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples is correct, 1 - C(n-c, k)/C(n, k);
    ValueError for k > n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; use 1 to {samples}, the number of samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority_is_correct(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, else 0; for a tie, the share of the tied answers
    that is correct.

    Answers are compared as they are given, see `count_votes`. A missing answer (None) has no vote.
    """
    winners = multimode(answer for answer in answers if answer is not None)
    correct_answers = {
        answer for answer, is_correct in zip(answers, correct, strict=True) if is_correct
    }
    return fmean(answer in correct_answers for answer in winners) if winners else 0.0


def bootstrap_interval(values: Floats, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of (P,) values, resampling problems, at a
    confidence level.
    """
    problems = len(values)
    # Problems are drawn with replacement, so their counts are multinomial.
    counts = np.random.default_rng(seed).multinomial(
        problems, np.full(problems, 1 / problems), size=RESAMPLES
    )
    low, high = np.quantile(counts @ values / problems, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def area_under(budgets: Sequence[int], accuracies: Sequence[float]) -> float:
    """Mean height of an accuracy curve over budgets on a logarithmic axis, between the smallest and
    the largest one.

    Between two budgets the curve is a straight line on that axis. Needs at least two different
    budgets above 0.
    """
    points = sorted(zip(budgets, accuracies, strict=True))
    x, y = np.log([budget for budget, _ in points]), np.array([accuracy for _, accuracy in points])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / (x[-1] - x[0]))


def paired_difference(first: Floats, second: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, and its 95% interval."""
    difference = second - first
    return float(difference.mean()), *bootstrap_interval(difference, seed=seed)
