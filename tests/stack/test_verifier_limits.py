"""How long verifiers, and code under test, may take."""

import json
import time
from contextlib import closing

import pytest
from support.confined import confined

from openrlhf_swap.rewards import Grade, Grader, unit_tests


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
    """Four tests of 0.3 seconds each take more than one test may; a test that takes more fails with
    those after it.
    """
    monkeypatch.setattr(unit_tests, "SECONDS", 1)
    assert unit_tests.verify("p", "assert spin(0.3)\n" * 4, SPIN, {}).score == 1
    seconds = ("0", "60", "0", "0")
    asserts = "\n".join(f"assert spin({text})" for text in seconds)
    rows = json.dumps([{"input": text, "output": "1"} for text in seconds])
    program = SPIN.replace("\n```", "\n\nprint(spin(float(input())))\n```")
    for tests, code, metadata in (
        (asserts, SPIN, {}),
        (rows, SPIN, {"fn_name": "spin"}),
        (rows, program, {}),
    ):
        assert unit_tests.verify("p", tests, code, metadata).score == 0.25


@confined
def test_a_grader_waits_for_as_long_as_the_tests_may_take():
    """It replaces a process that does not answer within six times 0.3 seconds, if no tests run
    there.
    """
    with closing(Grader(processes=1, time_limit=0.3, verifier="unit_tests")) as grader:
        grade = grader.grade(
            "import time\ntime.sleep(2.2)\nprint(1)", '[{"input": "", "output": "1"}]'
        )
    assert grade == Grade(True, "ok", score=1.0) and not grade.slow
