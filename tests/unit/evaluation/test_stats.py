"""Statistics against hand-worked numbers."""

import numpy as np
import pytest

from openrlhf_swap.evaluation.measures import (
    area_under,
    bootstrap_interval,
    majority_is_correct,
    paired_difference,
    pass_at_k,
)


def test_pass_at_k():
    # 4 samples, 1 right: two of them are both wrong in C(3,2)/C(4,2) = 3/6 of the choices.
    assert pass_at_k(1, 4, 2) == 0.5
    assert pass_at_k(1, 4, 1) == 0.25
    assert pass_at_k(0, 4, 4) == 0.0
    assert pass_at_k(3, 4, 2) == 1.0
    with pytest.raises(ValueError, match="use 1 to 4"):
        pass_at_k(1, 4, 5)


def test_majority():
    assert majority_is_correct(["1", "2", "2"], [False, True, True]) == 1.0
    assert majority_is_correct(["1", "1", "2"], [False, False, True]) == 0.0
    # "1" and "2" tie: half. No answer gets no vote.
    assert majority_is_correct(["1", "2", None, None], [False, True, False, False]) == 0.5
    assert majority_is_correct([None], [False]) == 0.0


def test_bootstrap_intervals():
    # 100 problems, half of them right: the mean's standard error is .5/10 = .05, so the interval is .5 -+ 1.96 x .05.
    values = np.repeat([0.0, 1.0], 50)
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(0.402, abs=0.015)
    assert high == pytest.approx(0.598, abs=0.015)
    assert bootstrap_interval(np.ones(5)) == (1.0, 1.0)
    # Pairing removes what both share: a constant gain has no spread.
    mean, low, high = paired_difference(values, values + 0.25)
    assert (mean, low, high) == pytest.approx((0.25, 0.25, 0.25))


def test_the_area_under_a_curve_of_budgets():
    # A decade from 0 to 1 (mean .5), and a decade at 1.
    assert area_under([10, 100, 1000], [0, 1, 1]) == pytest.approx(0.75)
    assert area_under([1000, 10, 100], [1, 0, 1]) == pytest.approx(0.75)
    assert area_under([7, 500], [0.4, 0.4]) == pytest.approx(0.4)
