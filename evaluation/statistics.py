"""What is computed from samples: arrays in, numbers out.

Shapes: P problems, S samples each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
RESAMPLES = 10_000


def pass_at_k(correct: int, samples: int, k: int) -> float:
    """Unbiased estimate of the chance that one of k samples is right: 1 - C(n-c, k)/C(n, k).

    Raises:
        ValueError: for more samples asked for than there are.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"k is {k}; use 1 to {samples}, the number of samples")
    return 1.0 - comb(samples - correct, k) / comb(samples, k)


def majority_is_right(answers: Sequence[str | None], correct: Sequence[bool]) -> float:
    """Whether the most frequent answer is right; among equally frequent ones, the share that is.

    Answers count as the same when they are the same text. No answer (None) gets no vote.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    right = {answer for answer, is_right in zip(answers, correct, strict=True) if is_right}
    winners = [answer for answer, count in votes.items() if count == most]
    return sum(answer in right for answer in winners) / len(winners)


def bootstrap_interval(values: Floats, level: float = 0.95, seed: int = 0) -> tuple[float, float]:
    """Percentile interval of the mean over problems.

    Args:
        values: (P,) one number a problem.
        level: of confidence.
        seed: of the resampling.
    """
    means = _resampled_means(np.asarray(values, dtype=np.float64)[:, None], seed)[:, 0]
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def paired_difference(first: Floats, second: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Mean of second - first over the same problems, and its 95% interval."""
    difference = np.asarray(second, dtype=np.float64) - np.asarray(first, dtype=np.float64)
    return float(difference.mean()), *bootstrap_interval(difference, seed=seed)


def _resampled_means(columns: Floats, seed: int) -> Floats:
    """(RESAMPLES, C) means of (P, C) over problems drawn with replacement."""
    problems = len(columns)
    rng = np.random.default_rng(seed)
    # How often each problem is drawn is multinomial, so that no (resamples, problems, C) array is needed.
    counts = rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES)
    return counts @ columns / problems
