"""One deadline for request and answer: CPU seconds, with wall time behind them."""

import signal
import threading
import time
from contextlib import ExitStack

import psutil
import pytest

from openrlhf_swap.rewards import Grade, Grader
from openrlhf_swap.rewards import grader as module
from openrlhf_swap.rewards.openrlhf_reward import reward_func

RIGHT = Grade(True, "ok", score=1.0)
LONG = "so 1 = 1. " * 100_000 + r"\boxed{3}"  # more than a pipe or socket holds
HANGS = r"\boxed{9^{9^{9^{9}}}}"
# A grading process with the real limits and another grading; test_rewards.py has the real one.
QUICK = (
    "import json, sys; path, *limits = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from support.quick_grading import serve; serve(*limits)"
)


@pytest.fixture
def make_grader(monkeypatch):
    monkeypatch.setattr(module, "_PROGRAM", QUICK)
    with ExitStack() as stack:

        def make(time_limit):
            grader = Grader(processes=1, time_limit=time_limit)
            stack.callback(grader.close)
            return grader

        yield make


def graded_within(seconds, grader, *pair):
    """The grade, or None if it takes longer; then the grading process is killed."""
    grades = []
    thread = threading.Thread(target=lambda: grades.append(grader.grade(*pair)))
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        for _ in range(2):
            for child in psutil.Process().children():
                child.kill()
            time.sleep(1)
        thread.join()
        return None
    return grades[0]


def the_child():
    """The grading process: of those that live, the newest."""
    found = []
    for child in psutil.Process().children():
        is_zombie = child.status() == psutil.STATUS_ZOMBIE  # of other tests
        if not is_zombie and "quick_grading" in " ".join(child.cmdline()):
            found.append(child)
    return max(found, key=lambda child: child.create_time())


@pytest.mark.parametrize("response", [r"\boxed{3}", LONG])
def test_a_stopped_process_is_replaced(make_grader, response):
    """Also while the request is written, which a stopped process does not read."""
    grader = make_grader(0.2)
    assert grader.grade(r"\boxed{3}", "3") == RIGHT
    the_child().send_signal(signal.SIGSTOP)
    grade = graded_within(60, grader, response, "3")
    assert grade == RIGHT
    assert grade.slow


def test_waiting_for_a_processor_costs_nothing(make_grader):
    """On a busy host a process may wait longer than its limit before it runs at all."""
    grader = make_grader(0.4)
    assert grader.grade(r"\boxed{3}", "3") == RIGHT
    child = the_child()
    child.send_signal(signal.SIGSTOP)
    threading.Timer(0.8, child.send_signal, [signal.SIGCONT]).start()
    grade = grader.grade(r"\boxed{3}", "3")
    assert grade == RIGHT
    assert not grade.slow
    assert child.is_running()


def test_the_limit_is_cpu_time(make_grader, monkeypatch):
    monkeypatch.setattr(module, "WALL_TIME_FACTOR", 100)  # on a busy machine it comes first
    grader = make_grader(0.5)
    assert grader.grade(r"\boxed{3}", "3") == RIGHT
    child = the_child()
    before = child.cpu_times()
    deadline = time.monotonic() + 60
    thread = threading.Thread(target=grader.grade, args=(HANGS, "3"))
    thread.start()
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        used = child.cpu_times()
        time.sleep(0.02)
    thread.join()
    assert 0.4 < used.user + used.system - before.user - before.system < 0.75


# What a process may do instead of answering, after it said that it is ready.
HALF_A_LINE = "sys.stdin.readline(); sys.stdout.write('[{'); sys.stdout.flush(); time.sleep(60)"
A_FORK_HOLDS_ITS_OUTPUT = "sys.stdin.readline(); os.fork() or time.sleep(60); os._exit(0)"
NEVER_READS = "time.sleep(60)"


@pytest.mark.parametrize("behaviour", [HALF_A_LINE, A_FORK_HOLDS_ITS_OUTPUT, NEVER_READS])
def test_nothing_hangs(monkeypatch, make_grader, behaviour):
    program = f"import os, sys, time; print('\"ready\"', flush=True); {behaviour}"
    monkeypatch.setattr(module, "_PROGRAM", program)
    grade = graded_within(20, make_grader(0.1), LONG, "3")
    assert grade == Grade(False, "timeout")
    assert grade.slow
    # A killed process takes its time to go; these would stay for a minute.
    deadline = time.monotonic() + 10
    while is_running(program):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def is_running(program):
    """Whether any process of this machine has the program as a word of its command."""
    commands = [process.info["cmdline"] for process in psutil.process_iter(["cmdline"])]
    return any(program in command for command in commands if command)


def test_slow_gradings_are_a_metric(monkeypatch, make_grader):
    grader = make_grader(0.3)
    monkeypatch.setattr(module, "_shared", lambda verifier: grader)
    for response, slow in ((HANGS, 1.0), (r"\boxed{3}", 0.0)):
        logs = reward_func(["p </think>" + response], ["p "], ["3"])["extra_logs"]
        assert logs["swap/grader_timeout"] == slow
        assert logs["swap/grader_slow"] == slow
