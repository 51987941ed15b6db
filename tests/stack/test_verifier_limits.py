"""How long verifiers, and code under test, may take."""

import json
import time

import pytest
from support.confined import confined

from openrlhf_swap.rewards import Grade, Grader, unit_tests


@pytest.mark.parametrize(
    ("name", "response"), [(r"regex:^(a+)+$", "a" * 40 + "b"), ("support.verifiers:hangs", "x")], ids=["regex", "own"]
)
def test_a_verifier_that_never_ends_costs_its_time_limit(name, response):
    grader = Grader(processes=1, time_limit=2.0, verifier=name)
    started = time.monotonic()
    assert grader.grade(response, "a") == Grade(False, "timeout")
    assert time.monotonic() - started < 30
    grader.close()


@confined
def test_code_that_never_ends_is_ended():
    started = time.monotonic()
    assert unit_tests.run_python("while True: pass", cpu=1).status == "timeout"
    assert unit_tests.run_python("import time\ntime.sleep(60)", wall=1).status == "timeout"
    assert time.monotonic() - started < 20


SPIN = "```python\nimport time\n\ndef spin(seconds):\n    end = time.process_time() + seconds\n"
SPIN += "    while time.process_time() < end:\n        pass\n    return 1\n```"


@confined
def test_the_seconds_of_a_test_are_its_own(monkeypatch):
    """Four tests of 0.3 seconds each take more than one test may; a test that takes more fails with those after it."""
    monkeypatch.setattr(unit_tests, "SECONDS", 1)
    assert unit_tests.verify("p", "assert spin(0.3)\n" * 4, SPIN, {}).score == 1
    assert (
        unit_tests.verify("p", "assert spin(0)\nassert spin(60)\nassert spin(0)\nassert spin(0)", SPIN, {}).score
        == 0.25
    )
    rows = json.dumps([{"input": text, "output": "1"} for text in ("0", "60", "0", "0")])
    assert unit_tests.verify("p", rows, SPIN, {"fn_name": "spin"}).score == 0.25
    program = SPIN.replace("\n```", "\n\nprint(spin(float(input())))\n```")
    assert unit_tests.verify("p", rows, program, {}).score == 0.25


@confined
def test_a_grader_waits_for_as_long_as_the_tests_may_take():
    """It replaces a process that does not answer within six times 0.3 seconds, if no tests run there."""
    grader = Grader(processes=1, time_limit=0.3, verifier="unit_tests")
    grade = grader.grade("import time\ntime.sleep(2.2)\nprint(1)", '[{"input": "", "output": "1"}]')
    grader.close()
    assert grade == Grade(True, "ok", score=1.0) and not grade.slow
