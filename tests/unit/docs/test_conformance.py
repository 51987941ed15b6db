"""Every objective against its authors' numbers."""

import runpy

import pytest
from support.conformance import largest_difference, numbers
from support.paths import ROOT

from openrlhf_swap.objectives.registry import OBJECTIVES


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
    own = runpy.run_path(str(ROOT / "docs" / "make_conformance.py"))["OWN"]
    compared = {name.partition("-")[0] for name in numbers()}
    assert compared | set(own) == set(OBJECTIVES) and not compared & set(own)
