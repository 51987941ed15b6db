"""A grading process: it answers requests one at a time, and ends when one takes more CPU time than it may."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import time
from typing import Any

from openrlhf_swap.rewards.grading import grade, is_gradable


def serve(memory_limit: int, cpu_limit: float) -> None:
    """Answer the requests on standard input, one line of JSON each, until it ends. The first line sent is "ready".

    An answer is the verdict and the CPU seconds that it took. The kernel ends the process by SIGPROF at its limit, in
    the middle of any computation; a process that has to wait for its turn on a busy host loses nothing.

    Args:
        memory_limit: bytes of address space.
        cpu_limit: CPU seconds for each request.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes standard input
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    import math_verify  # noqa: F401

    # It warns at every call that its own time limits are off; ours kill the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit)
        started = time.process_time()
        verdict = _answer(json.loads(line))
        print(json.dumps([verdict, time.process_time() - started]), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(request: list[Any]) -> bool | str:
    try:
        return is_gradable(*request) if len(request) == 1 else grade(*request)
    except Exception:  # noqa: BLE001 (a process boundary: whatever a parser raises, the grade is "error")
        return "error"
