"""Verifiers, and code under test, that never end."""

import time

import pytest

from openrlhf_swap.rewards import Grade, Grader, sandbox


@pytest.mark.parametrize(
    ("name", "response"), [(r"regex:^(a+)+$", "a" * 40 + "b"), ("support.verifiers:hangs", "x")], ids=["regex", "own"]
)
def test_a_verifier_that_never_ends_costs_its_time_limit(name, response):
    grader = Grader(processes=1, time_limit=2.0, verifier=name)
    started = time.monotonic()
    assert grader.grade(response, "a") == Grade(False, "timeout")
    assert time.monotonic() - started < 30
    grader.close()


@pytest.mark.skipif(not sandbox.is_available(), reason="needs Linux on x86_64 or arm64")
def test_code_that_never_ends_is_ended():
    started = time.monotonic()
    assert sandbox.run_python("while True: pass", "", sandbox.Limits(cpu=1)).status == "timeout"
    assert sandbox.run_python("import time\ntime.sleep(60)", "", sandbox.Limits(wall=1)).status == "timeout"
    assert time.monotonic() - started < 20
