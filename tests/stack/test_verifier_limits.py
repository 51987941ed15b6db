"""How long verifiers may take."""

import time
from contextlib import closing

import pytest

from openrlhf_swap.rewards import Grade, Grader


@pytest.mark.parametrize(
    ("name", "response"),
    [(r"regex:^(a+)+$", "a" * 40 + "b"), ("support.verifiers:hangs", "x")],
    ids=["regex", "own"],
)
def test_a_verifier_that_never_ends_costs_its_time_limit(name, response):
    started = time.monotonic()
    with closing(Grader(processes=1, time_limit=2.0, verifier=name)) as grader:
        assert grader.grade(response, "a") == Grade(False, "timeout")
    assert time.monotonic() - started < 30
