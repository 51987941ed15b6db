"""Paired t-tests over seeds, by mpmath, which comes with torch: the worlds need no SciPy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, stdev
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)


def tail(t: float, freedom: int) -> float:
    """The probability that |T| of so many degrees of freedom exceeds t."""
    from mpmath import betainc

    return float(betainc(freedom / 2, 0.5, 0, freedom / (freedom + t * t), regularized=True))


def t_quantile(freedom: int) -> float:
    """The number that |T| exceeds with probability 0.05."""
    from mpmath import findroot

    return float(findroot(lambda t: tail(t, freedom) - 0.05, (1, 20), solver="anderson"))


def p_value(differences: Sequence[float]) -> float:
    """Two-sided p of Student's paired t; 1 for fewer than two differences."""
    if len(differences) < 2:
        return 1.0
    deviation = stdev(differences)
    if deviation == 0:
        return 0.0 if differences[0] else 1.0
    return tail(
        fmean(differences) / (deviation / math.sqrt(len(differences))), len(differences) - 1
    )


def equivalence_p(differences: Sequence[float], margin: float) -> float:
    """The p of two one-sided t-tests that the mean lies between -margin and +margin.

    Small where it does; the larger p of the two tests. 1 for fewer than two differences.
    """
    if len(differences) < 2:
        return 1.0
    room = margin - abs(fmean(differences))  # to the nearer end
    error = stdev(differences) / math.sqrt(len(differences))
    if error == 0:
        return 0.0 if room > 0 else 1.0
    beyond = tail(room / error, len(differences) - 1) / 2
    return beyond if room > 0 else 1 - beyond


def half_interval(differences: Sequence[float]) -> float:
    """Half the 95% interval of the mean of at least two differences, by Student's t."""
    return t_quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))


def holm(values: Mapping[Key, float]) -> dict[Key, float]:
    """Holm's corrected p-values."""
    found: dict[Key, float] = {}
    largest = 0.0
    for rank, (name, value) in enumerate(sorted(values.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(values) - rank) * value))
        found[name] = largest
    return found
