"""Grading processes that hang or die: a grading is repeated or given up, and no other is lost."""

import os
import signal
import subprocess
import threading
import time

import pytest

from openrlhf_swap.rewards import Grade

RIGHT = Grade(True, "ok", score=1.0)
WRONG = Grade(False, "ok")


def test_an_expression_that_hangs_costs_its_time_limit_and_nothing_else(grader):
    started = time.monotonic()
    grades = grader.grade_many([(r"\boxed{9^{9^{9^{9}}}}", "3"), *[(r"\boxed{3}", "3")] * 20])
    assert grades == [Grade(False, "timeout"), *[RIGHT] * 20]
    assert time.monotonic() - started < 60  # the expression would take hours
    assert grader.grade(r"\boxed{3}", "3") == RIGHT


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
    hangs = (r"\boxed{9^{9^{9^{9}}}}", "3")
    thread = threading.Thread(target=lambda: grades.append(grader.grade(*hangs)))
    thread.start()
    while thread.is_alive():
        time.sleep(0.1)
        signal_children(signal.SIGKILL)
    assert grades == [Grade(False, "error")]
    assert grader.grade(r"\boxed{3}", "3") == RIGHT


def test_a_child_that_dies_idle_costs_nothing(grader):
    """As the kernel kills it for want of memory, between two gradings, and again."""
    for _ in range(3):
        assert grader.grade_many([(r"\boxed{3}", "3")] * 4) == [RIGHT] * 4
        assert signal_children(signal.SIGKILL)
        time.sleep(0.1)
        pairs = [(r"\boxed{3}", "3"), (r"\boxed{4}", "3")] * 2
        assert grader.grade_many(pairs) == [RIGHT, WRONG] * 2


@pytest.mark.parametrize(
    "text",
    ["\\boxed{" * 20_000, "\\boxed{" + "(" * 20_000 + "1" + ")" * 20_000 + "}", "{" * 50_000],
)
def test_deep_nesting_is_wrong_and_stalls_nothing(grader, text):
    grades = grader.grade_many([(text, "3"), *[(r"\boxed{3}", "3")] * 5])
    assert not grades[0].correct
    assert grades[1:] == [RIGHT] * 5
