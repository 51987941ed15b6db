"""A grading process: it answers requests one at a time, and ends when one takes more CPU time than it may."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
import traceback
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.verifiers import MATH, Verifier, find_verifier

TRACEBACKS = 3  # that a process prints: a verifier that fails mostly fails every time


def serve(memory_limit: int, cpu_limit: float, name: str = MATH) -> None:
    """Answer the requests on standard input, one line of JSON each, until it ends. The first line sent is "ready".

    A request has the arguments of `Verifier.judge`, or only an answer, of which math-verify says whether it can be
    graded against. The reply is the fields of a grade, and the CPU seconds that it took. The kernel ends the process
    by SIGPROF at its limit, in the middle of any computation; a process that has to wait for its turn on a busy host
    loses nothing.

    Args:
        memory_limit: bytes of address space.
        cpu_limit: CPU seconds for each request.
        name: the verifier's, as `--swap.grader` gives it.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library may print
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes standard input
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    verifier = find_verifier(name)
    print(json.dumps("ready"), file=replies, flush=True)
    tracebacks = TRACEBACKS if name != MATH else 0  # a parser fails on many a text
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit)
        started = time.process_time()
        try:
            reply = _answer(verifier, json.loads(line))
        except ConfigError as error:
            reply = {"correct": False, "status": "error", "why": str(error)}
        except Exception as error:  # noqa: BLE001 (a process boundary, and code that we have not seen)
            if tracebacks > 0:
                tracebacks -= 1
                traceback.print_exc()
            reply = {"correct": False, "status": "error", "why": traceback.format_exception_only(error)[-1].strip()}
        print(json.dumps([reply, time.process_time() - started]), file=replies, flush=True)
        signal.setitimer(signal.ITIMER_PROF, 0)


def _answer(verifier: Verifier, request: dict[str, Any]) -> dict[str, Any]:
    if "response" not in request:
        return {"correct": verifier.find_fault(request["answer"], {}) is None, "status": "ok"}
    verdict = verifier.judge(**request)
    return {
        "correct": bool(verdict.correct) and verdict.answered,
        "status": "ok" if verdict.answered else "no_answer",
        "score": verdict.score,
        "why": verdict.why,
        "stated": verdict.stated,
    }
