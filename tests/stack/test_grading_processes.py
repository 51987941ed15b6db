"""Grading processes that hang or die: a grading is repeated or given up, and no other is lost."""

import os
import signal
import subprocess
import threading
import time
from contextlib import closing

import pytest

from openrlhf_swap.rewards import Grade, Grader

RIGHT = Grade(True, "ok", score=1.0)
WRONG = Grade(False, "ok")
EASY = (r"\boxed{3}", "3")
HANGS = (r"\boxed{9^{9^{9^{9}}}}", "3")  # computing it would take hours


def test_an_expression_that_hangs_costs_its_time_limit_and_nothing_else(grader):
    started = time.monotonic()
    grades = grader.grade_many([HANGS] + 20 * [EASY])
    assert grades == [Grade(False, "timeout")] + 20 * [RIGHT]
    assert time.monotonic() - started < 60
    assert grader.grade(*EASY) == RIGHT


@pytest.mark.parametrize(
    ("verifier", "response"),
    [(r"regex:^(a+)+$", "a" * 40 + "b"), ("support.verifiers:hangs", "x")],
    ids=["regex", "own"],
)
def test_a_verifier_that_never_ends_costs_its_time_limit(verifier, response):
    started = time.monotonic()
    with closing(Grader(processes=1, time_limit=2.0, verifier=verifier)) as grader:
        assert grader.grade(response, "a") == Grade(False, "timeout")
    assert time.monotonic() - started < 30


def signal_children(number):
    """Send a signal to the grading processes of this one; returns how many there are."""
    command = ["pgrep", "-f", "-P", str(os.getpid()), "rewards.grader"]
    found = subprocess.run(command, capture_output=True, text=True)
    for pid in found.stdout.split():
        os.kill(int(pid), number)
    return len(found.stdout.split())


def test_a_child_that_dies_at_work_loses_nothing(grader):
    pairs = [(rf"\boxed{{{number}}}", "3") for number in range(8)]
    expected = grader.grade_many(pairs)
    signal_children(signal.SIGSTOP)  # at work until they are killed
    grades = []
    thread = threading.Thread(target=lambda: grades.extend(grader.grade_many(pairs)))
    thread.start()
    time.sleep(0.3)
    assert not grades
    signal_children(signal.SIGKILL)
    thread.join()
    assert grades == expected
    assert expected.count(RIGHT) == 1


def test_a_grading_whose_children_die_again_is_an_error(grader):
    grades = []
    thread = threading.Thread(target=lambda: grades.append(grader.grade(*HANGS)))
    thread.start()
    while thread.is_alive():
        time.sleep(0.1)
        signal_children(signal.SIGKILL)
    assert grades == [Grade(False, "error")]
    assert grader.grade(*EASY) == RIGHT


def test_a_child_that_dies_idle_costs_nothing(grader):
    """As the kernel kills it for want of memory, between two gradings, and again."""
    for _ in range(3):
        assert grader.grade_many(4 * [EASY]) == 4 * [RIGHT]
        assert signal_children(signal.SIGKILL)
        time.sleep(0.1)
        pairs = [EASY, (r"\boxed{4}", "3")]
        assert grader.grade_many(2 * pairs) == 2 * [RIGHT, WRONG]


@pytest.mark.parametrize(
    "text",
    [
        "\\boxed{" * 20_000,
        "\\boxed{" + "(" * 20_000 + "1" + ")" * 20_000 + "}",
        "{" * 50_000,
    ],
)
def test_deep_nesting_is_wrong_and_stalls_nothing(grader, text):
    nested, *others = grader.grade_many([(text, "3")] + 5 * [EASY])
    assert not nested.correct
    assert others == 5 * [RIGHT]
