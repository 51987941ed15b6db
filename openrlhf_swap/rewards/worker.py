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
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit)
        started = _seconds()
        verdict = judge(json.loads(line))
        print(json.dumps([verdict, _seconds() - started]), file=answers, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _seconds() -> float:
    """CPU seconds of this process and of those that it started and that have ended."""
    return sum(os.times()[:4])


def _mathematics() -> Callable[[list[Any]], bool | str]:
    """Answers [text, reference answer, whether the thought was closed] and [reference answer] by math-verify."""
    import math_verify  # noqa: F401

    # It warns at every call that its own time limits are off; ours kill the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)

    def judge(request: list[Any]) -> bool | str:
        try:
            return is_gradable(*request) if len(request) == 1 else grade(*request)
        except Exception:  # noqa: BLE001 (a process boundary: whatever a parser raises, the grade is "error")
            return "error"

    return judge


def _own(verifier: Verifier) -> Callable[[list[Any]], dict[str, Any]]:
    """Answers [text, reference answer, whether the thought was closed, problem, metadata] by another verifier."""
    left = TRACEBACKS

    def judge(request: list[Any]) -> dict[str, Any]:
        nonlocal left
        text, answer, closed, problem, metadata = request
        try:
            verdict = verifier.judge(problem, answer, text, {**metadata, THOUGHT_CLOSED: closed})
        except Exception as error:  # noqa: BLE001 (a process boundary, and code that we have not seen)
            if left > 0:
                left -= 1
                traceback.print_exc()
            why = traceback.format_exception_only(error)[-1].strip()
            return {"status": "error", "why": why, "score": 0.0, "correct": False, "stated": None}
        return _as_answer(verdict)

    return judge


def _as_answer(verdict: Verdict) -> dict[str, Any]:
    return {
        "status": "ok" if verdict.answered else "no_answer",
        "why": verdict.why,
        "score": verdict.score,
        "correct": bool(verdict.correct),
        "stated": verdict.stated,
    }
