"""A grading process: it answers requests one at a time, and ends when one takes more CPU time than it may."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

from openrlhf_swap.rewards.grading import grade, is_gradable
from openrlhf_swap.rewards.verifiers import MATH, THOUGHT_CLOSED, Verdict, Verifier, find_verifier

TRACEBACKS = 3  # that a process prints: a verifier that fails mostly fails every time


def serve(memory_limit: int, cpu_limit: float, verifier: str = MATH) -> None:
    """Answer the requests on standard input, one line of JSON each, until it ends. The first line sent is "ready".

    An answer is the verdict and the CPU seconds that it took. The kernel ends the process by SIGPROF at its limit, in
    the middle of any computation; a process that has to wait for its turn on a busy host loses nothing.

    Args:
        memory_limit: bytes of address space.
        cpu_limit: CPU seconds for each request.
        verifier: its name, as `--swap.grader` gives it.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes standard input
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    judge = _mathematics() if verifier == MATH else _own(find_verifier(verifier))
    print(json.dumps("ready"), file=answers, flush=True)
    tracebacks = TRACEBACKS if verifier != MATH else 0  # a parser fails on many a text
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit)
        started = _seconds()
        try:
            verdict = judge(json.loads(line))
        except Exception as error:  # noqa: BLE001 (a process boundary, and code that we have not seen)
            if tracebacks > 0:
                tracebacks -= 1
                traceback.print_exc()
            verdict = "error" if verifier == MATH else _as_error(error)
        print(json.dumps([verdict, _seconds() - started]), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _seconds() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def _mathematics() -> Callable[[list[Any]], Any]:
    """Answers [text, reference answer, whether the thought was closed] and [reference answer] by math-verify."""
    import math_verify  # noqa: F401

    # It warns at every call that its own time limits are off; ours kill the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    return lambda request: is_gradable(*request) if len(request) == 1 else grade(*request)


def _own(verifier: Verifier) -> Callable[[list[Any]], Any]:
    """Answers [text, reference answer, whether the thought was closed, problem, metadata] by another verifier."""

    def judge(request: list[Any]) -> dict[str, Any]:
        text, answer, closed, problem, metadata = request
        return _as_answer(verifier.judge(problem, answer, text, {**metadata, THOUGHT_CLOSED: closed}))

    return judge


def _as_answer(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": "ok" if verdict.answered else "no_answer",
        "why": verdict.why,
        "score": verdict.score,
        "correct": bool(verdict.correct) and verdict.answered,
        "stated": verdict.stated,
    }


def _as_error(error: Exception) -> dict[str, Any]:
    why = traceback.format_exception_only(error)[-1].strip()
    return {"status": "error", "why": why, "score": 0.0, "correct": False, "stated": None}
