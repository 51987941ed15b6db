"""Measures of an evaluation's samples, per benchmark."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, nan
from pathlib import Path
from statistics import fmean, multimode

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from openrlhf_swap.algorithm.known import known_in
from openrlhf_swap.data.benchmarks import BENCHMARKS
from openrlhf_swap.evaluation.samples import SampleFiles, files_as_written, graded_benchmarks
from openrlhf_swap.evaluation.traces import read_scored
from openrlhf_swap.rewards import grade_answer
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.verifiers import NOT_JUDGED
from openrlhf_swap.runs.diagnostics import length_correctness

# Measures that need verdicts.
FROM_VERDICTS = {
    "accuracy",
    "accuracy_low",
    "accuracy_high",
    "pass@k",
    "maj@k",
    "score",
    "tokens_correct",
    "tokens_wrong",
    "accuracy_per_1k_tokens",
}
Floats = NDArray[np.float64]
Values = dict[str, float]
RESAMPLES = 10_000


@dataclass
class Measures:
    """Measures of one benchmark's samples.

    Attributes:
        problems: P rows, in order, of `problem` (its text without white space, or its id in a
            folder without the file of its problems), `accuracy` (the share of its correct samples;
            NaN if nothing was judged) and `tokens` (the mean of its samples). A text that stands
            under several ids is one problem with the samples of all of them.
        values: measures of all samples, by name; NaN for those FROM_VERDICTS if nothing was judged.
        samples: the graded samples without their texts.
    """

    problems: pd.DataFrame
    values: Values
    samples: pd.DataFrame


Evaluation = dict[str, Measures]


def measure_evaluations(folders: Sequence[Path]) -> dict[str, Evaluation]:
    """Measures of evaluations, by folder name, or by path where two folders share a name."""
    names = [folder.name for folder in folders]
    evaluations = {}
    for folder in folders:
        unique = names.count(folder.name) == 1
        evaluations[folder.name if unique else str(folder)] = measure_evaluation(folder)
    return evaluations


def measure_evaluation(folder: Path) -> Evaluation:
    """Measures of every benchmark in an evaluation's folder: the known ones first, in their order.

    Raises DataError if there is no graded sample, or a file that no evaluation writes.
    """
    with files_as_written(folder):
        found = {files.benchmark: files for files in graded_benchmarks(folder)}
        names = [name for name in BENCHMARKS if name in found]
        names += [name for name in found if name not in BENCHMARKS]
        return {name: measure_benchmark(found[name]) for name in names}


def measure_benchmark(files: SampleFiles) -> Measures:
    """Measures of one benchmark; of its samples only the numbers are kept in memory."""
    texts = {}
    for key, row in files.problems().items():
        texts[key] = without_white_space(row["problem"])
    rows = []
    for sample, grade in files.graded():
        key = sample["id"]
        rows.append({**sample, **grade, "text": None, "problem": texts.get(key, key)})
    samples = pd.DataFrame(rows)
    by_problem = samples.groupby("problem", sort=False)
    problems = by_problem.agg(accuracy=("correct", "mean"), tokens=("tokens", "mean"))
    problems = problems.reset_index()
    values = {
        **accuracies(samples, problems),
        **lengths(samples, problems),
        **looping(samples),
        **closed_by_budget(samples),
        **length_correctness_of_problems(samples),
        **shares_by_status(samples),
        **known_after(files),
    }
    values = {measure: float(value) for measure, value in values.items()}
    if "why" in samples and samples["why"].eq(NOT_JUDGED).all():
        problems["accuracy"] = nan
        values |= dict.fromkeys(FROM_VERDICTS & values.keys(), nan)
    return Measures(problems, values, samples)


def without_white_space(problem: str) -> str:
    """A problem's text, by which it is known: the hub and a local copy give it different ids."""
    return "".join(problem.split())


def accuracies(samples: pd.DataFrame, problems: pd.DataFrame) -> Values:
    """Accuracy with its interval, pass@k and maj@k.

    k is `samples`, the fewest samples that a problem has. `score` is the mean of a verifier's
    scores, where some lie between 0 and 1.
    """
    by_problem = samples.groupby("problem", sort=False)
    k = int(by_problem.size().min())
    passed = []
    majorities = []
    for _, group in by_problem:
        passed.append(pass_at_k(int(group["correct"].sum()), len(group), k))
        voters = group.sort_values("sample", kind="stable")[:k]
        majorities.append(majority_is_correct(count_votes(voters), list(voters["correct"])))
    low, high = bootstrap_interval(problems["accuracy"].to_numpy())
    values = {
        "problems": len(problems),
        "samples": k,
        "accuracy": problems["accuracy"].mean(),
        "accuracy_low": low,
        "accuracy_high": high,
        "pass@k": fmean(passed),
        "maj@k": fmean(majorities),
    }
    if "score" in samples:
        values["score"] = samples["score"].fillna(samples["correct"].astype(float)).mean()
    return values


def lengths(samples: pd.DataFrame, problems: pd.DataFrame) -> Values:
    """Tokens of responses and of their parts, and the shares of responses that do not end."""
    tokens = samples["tokens"]
    thinking = samples["thinking_tokens"]
    correct = samples["correct"]
    mean = problems["tokens"].mean()
    return {
        "tokens": mean,
        "tokens_median": tokens.median(),
        "tokens_correct": tokens[correct].mean(),
        "tokens_wrong": tokens[~correct].mean(),
        "tokens_thinking": thinking.mean(),
        "tokens_answer": (tokens - thinking).mean(),
        "truncated": samples["truncated"].mean(),
        "unclosed": (thinking == tokens).mean(),
        "accuracy_per_1k_tokens": problems["accuracy"].mean() / (mean / 1000),
    }


def looping(samples: pd.DataFrame) -> Values:
    """The share of responses that loop; {} where a sample of an earlier version does not say."""
    if "looping" not in samples or samples["looping"].isna().any():
        return {}
    return {"looping": samples["looping"].mean()}


def closed_by_budget(samples: pd.DataFrame) -> Values:
    """The share of thoughts that a budget closed; {} where it closed none."""
    if "closed_by_budget" not in samples:
        return {}
    return {"closed_by_budget": samples["closed_by_budget"].eq(True).mean()}


def length_correctness_of_problems(samples: pd.DataFrame) -> Values:
    """The mean correlation of length and correctness among a problem's samples.

    Problems that are always or never solved have none, and without others the result is {}.
    """
    found = []
    for _, group in samples.groupby("problem", sort=False):
        correlation = length_correctness(group["tokens"], group["correct"])
        if correlation is not None:
            found.append(correlation)
    return {"length_correctness": fmean(found)} if found else {}


def shares_by_status(samples: pd.DataFrame) -> Values:
    """The share of the samples with each status of the grader but `ok`."""
    shares = samples["status"].value_counts(normalize=True).drop("ok", errors="ignore")
    return {f"grader_{status}": share for status, share in shares.sort_index().items()}


def known_after(files: SampleFiles) -> Values:
    """The mean share of a correct response's thought that follows once the answer is known.

    It is read from the folder's scored traces; {} if there are none.
    """
    scored = files.folder / "scored.jsonl"
    if not scored.exists():
        return {}
    traces = [row for row in read_scored(scored) if row.get("benchmark") == files.benchmark]
    known = [known_in(row["answer_logprobs"], row["step_ends"]) for row in traces if row["correct"]]
    shares = [each.share for each in known if each]
    return {"known_after": fmean(shares)} if shares else {}


def count_votes(group: pd.DataFrame) -> list[str | None]:
    """The vote of each sample of a problem; None for a sample that states no answer.

    Answers that the grader finds equal have one vote. It found all right answers equal. Wrong
    answers are compared with each other only where they could outnumber the right ones; elsewhere
    the majority does not depend on it, and their texts are the votes.
    """
    votes: list[str | None] = []
    right = None
    for answer, correct in zip(group["answer"], group["correct"], strict=True):
        vote = None if pd.isna(answer) else strip_answer(answer)
        if correct and vote:
            right = right or vote
            vote = right
        votes.append(vote)
    wrong = [vote for vote in votes if vote and vote != right]
    if right is None or len(wrong) < votes.count(right):
        return votes
    first_equal = _first_equal(wrong)
    return [vote if vote is None else first_equal.get(vote, vote) for vote in votes]


def _first_equal(answers: Sequence[str]) -> dict[str, str]:
    """Each answer -> the first of the answers that the grader finds equal to it."""
    found: dict[str, str] = {}
    for answer in dict.fromkeys(answers):
        distinct = dict.fromkeys(found.values())
        found[answer] = answer
        for earlier in distinct:
            if grade_answer(f"\\boxed{{{answer}}}", earlier).correct:
                found[answer] = earlier
                break
    return found


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples is correct, 1 - C(n-c, k)/C(n, k).

    Raises ValueError for k > n.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; use 1 to {samples}, the number of samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority_is_correct(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, else 0; in a tie, the share that is correct.

    Answers are compared as they are given, see `count_votes`. A missing answer (None) has no vote.
    """
    winners = multimode(answer for answer in answers if answer is not None)
    if not winners:
        return 0.0
    right = {answer for answer, good in zip(answers, correct, strict=True) if good}
    return fmean(answer in right for answer in winners)


def bootstrap_interval(values: Floats, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of (P,) values, at a confidence level.

    Problems are drawn with replacement, so their counts are multinomial.
    """
    problems = len(values)
    chances = np.full(problems, 1 / problems)
    counts = np.random.default_rng(seed).multinomial(problems, chances, size=RESAMPLES)
    tail = (1 - level) / 2
    low, high = np.quantile(counts @ values / problems, [tail, 1 - tail])
    return float(low), float(high)


def paired_difference(first: Floats, second: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, and its 95% interval."""
    difference = second - first
    return float(difference.mean()), *bootstrap_interval(difference, seed=seed)
