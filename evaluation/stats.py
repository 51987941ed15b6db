"""Statistics over the samples of P problems: arrays in, numbers out."""

from collections.abc import Sequence
from math import comb
from statistics import fmean, multimode

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate that at least one of k samples is correct, 1 - C(n-c, k)/C(n, k); ValueError for k > n."""
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; use 1 to {samples}, the number of samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority_is_correct(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """1 if the most frequent answer is correct, else 0; for a tie, the share of the tied answers that is correct.

    Answers are compared as they are given, see `measures.vote`. A missing answer (None) has no vote.
    """
    winners = multimode(answer for answer in answers if answer is not None)
    correct_answers = {answer for answer, is_correct in zip(answers, correct, strict=True) if is_correct}
    return fmean(answer in correct_answers for answer in winners) if winners else 0.0


def bootstrap_interval(values: Floats, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean of (P,) values, resampling problems, at a confidence level."""
    problems = len(values)
    # Problems are drawn with replacement, so their counts are multinomial.
    counts = np.random.default_rng(seed).multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
    low, high = np.quantile(counts @ values / problems, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def area_under(budgets: Sequence[int], accuracies: Sequence[float]) -> float:
    """Mean height of an accuracy curve over budgets on a logarithmic axis, between the smallest and the largest one.

    Between two budgets the curve is a straight line on that axis. Needs at least two different budgets above 0.
    """
    points = sorted(zip(budgets, accuracies, strict=True))
    x, y = np.log([budget for budget, _ in points]), np.array([accuracy for _, accuracy in points])
    return float(np.sum(np.diff(x) * (y[1:] + y[:-1]) / 2) / (x[-1] - x[0]))


def paired_difference(first: Floats, second: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, and its 95% interval."""
    difference = second - first
    return float(difference.mean()), *bootstrap_interval(difference, seed=seed)
