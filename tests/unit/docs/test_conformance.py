"""Every objective against its authors' numbers."""

import pytest
from support.conformance import largest_difference, numbers

from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class


@pytest.mark.parametrize("name", numbers())
def test_an_objective_gives_its_authors_numbers(name):
    responses, largest = largest_difference(name)
    assert responses >= 28 and largest <= numbers()[name].get("tolerance", 1e-5)


def test_a_difference_is_seen():
    known = numbers()["kimi"]
    number = known["advantages"][0][0]
    known["advantages"][0][0] = number + 0.01
    try:
        assert largest_difference("kimi")[1] == pytest.approx(0.01, rel=1e-3)
    finally:
        known["advantages"][0][0] = number


def test_every_objective_has_numbers_or_a_reason():
    compared = {name.partition("-")[0] for name in numbers()}
    assert all(objective_class(name).no_numbers for name in set(OBJECTIVES) - compared)
