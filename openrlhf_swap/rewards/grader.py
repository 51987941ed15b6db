"""Is a response correct? A pool of processes with hard limits answers, in which a verifier may hang or crash.

math-verify's own time limits use signals, which fail outside the main thread and cannot interrupt every expression.
Here the kernel ends a process when its CPU time is used up, and the process is replaced. Wall time only guards against
a process that does not run: on a busy host every grading gets its turn.

The processes are plain programs, not `multiprocessing`'s, which import the caller's main module again: a notebook has
none, and a script without a main guard does not survive that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from queue import LifoQueue
from typing import Any, Literal

from openrlhf_swap.rewards.answers import END_OF_THOUGHT
from openrlhf_swap.rewards.statements import text_after_thought
from openrlhf_swap.rewards.verifiers import MATH, THOUGHT_CLOSED, UNIT_TESTS, Reference

MEMORY = 4 * 2**30  # bytes of address space of a grading process
ATTEMPTS = 2
START_SECONDS = 120.0  # that a process may take to import the verifier, on a busy machine
WALL_TIME_FACTOR = 6  # wall time that a grading may take, in CPU time limits
UNIT_TESTS_SECONDS = 3600.0  # wall time where unit tests run; they have limits of their own
SLOW = 0.5  # share of the CPU time limit above which a grading counts as slow
_PROGRAM = (
    "import json, sys; path, *limits = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from openrlhf_swap.rewards.worker import serve; serve(*limits)"
)


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    Attributes:
        correct: never True unless `status` is "ok".
        status: "ok" (graded), "no_answer" (the response states no answer), "timeout" (a time limit was hit) or
            "error" (the reference answer cannot be parsed, or the verifier failed).
        slow: whether grading came near its time limit, hit it, or needed a second process.
        score: the reward, between 0 and 1; 1.0 or 0.0 unless a verifier says otherwise.
        why: a verifier's reason, or its error.
        stated: the answer that a verifier read in the response.

    Grades that differ in `slow`, `why` or `stated` alone are equal.
    """

    correct: bool
    status: Literal["ok", "no_answer", "timeout", "error"]
    slow: bool = field(default=False, compare=False, repr=False)
    score: float = field(default=0.0, repr=False)
    why: str = field(default="", compare=False, repr=False)
    stated: str | None = field(default=None, compare=False, repr=False)


class Grader:
    """A pool of grading processes. Thread-safe; processes start at the first grading, and end with this one."""

    def __init__(self, processes: int = 2, time_limit: float = 10.0, verifier: str = MATH) -> None:
        """Choose how many responses are graded at a time, and by which verifier.

        `time_limit` is the CPU seconds of one grading, after which its process is ended. A process that does not
        answer within six times as many seconds of wall time (with unit tests within an hour) is replaced, and its
        successor asked once.
        """
        self._children = [_Child(verifier, time_limit) for _ in range(processes)]
        self._idle: LifoQueue[_Child] = LifoQueue()  # the last one used is the likeliest to be started
        for child in self._children:
            self._idle.put(child)

    def grade(self, response: str, answer: str | Reference, end_of_thought: str = END_OF_THOUGHT) -> Grade:
        """`grade_many` of one pair."""
        return self.grade_many([(response, answer)], end_of_thought)[0]

    def grade_many(
        self, pairs: Sequence[tuple[str, str | Reference]], end_of_thought: str = END_OF_THOUGHT
    ) -> list[Grade]:
        """Grade pairs of a response and a reference in parallel; one grade each, in order. Never raises.

        The text after the first `end_of_thought` of a response is graded, or all of it without one. There math-verify
        and `multiple_choice` ask for a stated final answer (`rewards.answers.final_statement`), because a number
        somewhere in a thought is not an answer.
        """
        requests = []
        for response, answer in pairs:
            known = answer if isinstance(answer, Reference) else Reference(answer)
            metadata = {**known.metadata, THOUGHT_CLOSED: end_of_thought in response}
            text = text_after_thought(response, end_of_thought)
            requests.append({"problem": known.problem, "answer": known.answer, "response": text, "metadata": metadata})
        return [Grade(**reply) for reply in self._ask_all(requests)]

    def is_gradable(self, answers: Sequence[str]) -> list[bool]:
        """Whether math-verify can grade against each reference answer at all."""
        return [reply["correct"] for reply in self._ask_all([{"answer": answer} for answer in answers])]

    def close(self) -> None:
        """Stop the processes. The grader can be used again; it then starts new ones."""
        for child in [self._idle.get() for _ in self._children]:
            child.stop()
            self._idle.put(child)

    def _ask_all(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(self._children)) as threads:
            return list(threads.map(self._ask, requests))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        child = self._idle.get()
        try:
            return child.ask(request)
        finally:
            self._idle.put(child)


class _Child:
    """One grading process, with a socket to it: started when it is asked, and again when it is gone."""

    def __init__(self, verifier: str, cpu_seconds: float) -> None:
        self._verifier = verifier
        self._cpu_seconds = cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The fields of a grade.

        A process that dies, idle or at work, or does not answer in time though it hardly computes, is replaced and
        asked again: it may have been killed or stopped from outside. A second one that fares the same was the
        grading's own doing.
        """
        message = json.dumps(request, default=str).encode() + b"\n"
        wall = UNIT_TESTS_SECONDS if self._verifier == UNIT_TESTS else WALL_TIME_FACTOR * self._cpu_seconds
        failure = "error"
        for attempt in range(ATTEMPTS):
            try:
                grade, seconds = _exchange(self._start(), message, wall)
                return {**grade, "slow": attempt > 0 or seconds > SLOW * self._cpu_seconds}
            except TimeoutError:
                failure = "timeout"
                self.stop()
            except (OSError, ValueError):  # the process could not start, or ended: no line, or half a line
                failure = "error"
                if self.stop() == -signal.SIGPROF:
                    failure = "timeout"
                    break
        return {"correct": False, "status": failure, "slow": True}

    def stop(self) -> int | None:
        """Kill the process and all that it started, whatever they do; returns its exit status if there was one."""
        if self._socket is None or self._process is None:
            return None
        self._socket.close()
        if self._process.returncode is None:  # once it is waited for, its number may be another's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._process = self._socket = None
        return status

    def _start(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self.stop()
        if self._verifier == MATH and find_spec("math_verify") is None:  # the process would only be gone
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        words = json.dumps([sys.path, MEMORY, self._cpu_seconds, self._verifier])
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, words],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        self._socket = ours
        _exchange(ours, b"", START_SECONDS)
        return ours


def _exchange(connection: socket.socket, message: bytes, seconds: float) -> Any:
    """Send a message and read a line of JSON, both before one deadline; raises OSError or ValueError otherwise."""
    deadline = time.monotonic() + seconds
    connection.settimeout(seconds)
    connection.sendall(message)
    answer = b""
    while not answer.endswith(b"\n"):
        connection.settimeout(max(deadline - time.monotonic(), 1e-3))
        part = connection.recv(65536)
        if not part:
            raise ValueError("the grading process ended")
        answer += part
    return json.loads(answer)


@cache
def _shared(verifier: str) -> Grader:
    return Grader(verifier=verifier)


def grade_answer(
    response: str, answer: str | Reference, end_of_thought: str = END_OF_THOUGHT, verifier: str = MATH
) -> Grade:
    r"""Grade a response with the process-wide grader of a verifier.

    Args:
        response: the generated text alone, without the prompt. The text after the first end of the thought is graded;
            without one, the final answer that the text states.
        answer: the reference answer; for math-verify bare or in `$...$` or `\boxed{...}`, for other verifiers perhaps
            a `Reference`, with the problem and the other columns of its row.
        end_of_thought: what closes a thought; R1's by default.
        verifier: math (math-verify), or another one's name: see docs/use/own_verifier.md.
    """
    return _shared(verifier).grade(response, answer, end_of_thought)
