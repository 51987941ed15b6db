"""Is a response correct? math-verify, or another verifier, behind a pool of processes with hard limits.

math-verify's own time limits use signals, which fail outside the main thread, and cannot interrupt every expression.
Here each grading runs in a child process that the kernel ends when its CPU time is used up, and that is replaced. Wall
time only guards against a process that does not run: on a busy host every grading gets its turn. So no expression can
hang a rollout, and nothing is ever raised: a grade always comes back.

The children are plain programs rather than `multiprocessing`'s, which import the caller's main module again: a
notebook has none, and a script without a main guard does not survive that.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from queue import LifoQueue
from typing import Any, Literal, NamedTuple

from openrlhf_swap.rewards.answers import END_OF_THOUGHT, text_after_thought
from openrlhf_swap.rewards.unit_tests import seconds_for
from openrlhf_swap.rewards.verifiers import MATH, UNIT_TESTS, Reference

Status = Literal["ok", "no_answer", "timeout", "error"]
Found = bool | Status | dict[str, Any]
"""What a grading process answers: math-verify's verdict or a status, another verifier's fields of a grade."""
ATTEMPTS = 2
START_SECONDS = 120.0  # that a child may take to import the grader, on a busy machine
WALL_TIME_FACTOR = 6  # wall time that a grading may take, in CPU time limits
SLOW = 0.5  # share of the CPU time limit above which a grading counts as slow
_PROGRAM = (
    "import json, sys; path, *limits = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from openrlhf_swap.rewards.worker import serve; serve(*limits)"
)


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    Attributes:
        correct: whether the response is correct: with math-verify, equal to the reference answer. Never True unless
            `status` is "ok".
        status: "ok" (graded), "no_answer" (the response states no answer), "timeout" (a time limit was hit) or
            "error" (the reference answer cannot be parsed, or the grader failed).
        slow: whether grading came near its time limit, hit it, or needed a second process. Not part of the verdict:
            grades that differ in it alone are equal.
        score: the reward, between 0 and 1; 1.0 or 0.0 unless a verifier says otherwise.
        why: a verifier's reason, or its error. Not part of the verdict.
        stated: the answer that a verifier read in the response. Not part of the verdict.
    """

    correct: bool
    status: Status
    slow: bool = field(default=False, compare=False, repr=False)
    score: float = field(default=-1.0, repr=False)
    why: str = field(default="", compare=False, repr=False)
    stated: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Without a score it is what `correct` says."""
        if self.score < 0:
            object.__setattr__(self, "score", float(self.correct))


class _Limits(NamedTuple):
    """What one grading may take: CPU seconds, wall seconds, and bytes of address space."""

    cpu: float
    wall: float
    memory: int


class Grader:
    """A pool of grading processes. Thread-safe; processes start at the first grading, and end with this one."""

    def __init__(
        self, processes: int = 2, time_limit: float = 10.0, memory_limit_gib: float = 4.0, verifier: str = MATH
    ) -> None:
        """Set up a grader.

        Args:
            processes: how many responses are graded at a time.
            time_limit: CPU seconds of one grading, after which its process is ended. A process that does not answer
                within six times as many seconds of wall time, and what unit tests may take, is replaced, and its
                successor asked once.
            memory_limit_gib: address space of a grading process.
            verifier: its name (`rewards.verifiers`).
        """
        self._processes = processes
        self._verifier = verifier
        self._idle: LifoQueue[_Child] = LifoQueue()
        limits = _Limits(time_limit, WALL_TIME_FACTOR * time_limit, int(memory_limit_gib * 2**30))
        for _ in range(processes):
            self._idle.put(_Child(limits, verifier))

    def grade(self, response: str, answer: str | Reference, end_of_thought: str = END_OF_THOUGHT) -> Grade:
        """Grade one response; see `grade_many`."""
        return self.grade_many([(response, answer)], end_of_thought)[0]

    def grade_many(
        self, pairs: Sequence[tuple[str, str | Reference]], end_of_thought: str = END_OF_THOUGHT
    ) -> list[Grade]:
        """Grade pairs of a response and a reference in parallel; one grade each, in order. Never raises.

        What follows the first `end_of_thought` of a response is graded. Without one, all of it: there math-verify and
        `multiple_choice` ask for a stated final answer (`rewards.answers.final_statement`), because a number
        somewhere in a thought is none.
        """
        return [_as_grade(*found) for found in self._ask_all([self._request(*pair, end_of_thought) for pair in pairs])]

    def _request(self, response: str, reference: str | Reference, end_of_thought: str) -> list[Any]:
        known = Reference(reference) if isinstance(reference, str) else reference
        graded = [text_after_thought(response, end_of_thought), known.answer, end_of_thought in response]
        return graded if self._verifier == MATH else [*graded, known.problem, dict(known.metadata)]

    def is_gradable(self, answers: Sequence[str]) -> list[bool]:
        """Whether math-verify can grade against each reference answer at all."""
        return [verdict is True for verdict, _ in self._ask_all([[answer] for answer in answers])]

    def close(self) -> None:
        """Stop the processes. The grader can be used again; it then starts new ones."""
        children = [self._idle.get() for _ in range(self._processes)]
        for child in children:
            child.stop()
            self._idle.put(child)

    def _ask_all(self, requests: Sequence[list[Any]]) -> list[tuple[Found, bool]]:
        if len(requests) == 1:
            return [self._ask(requests[0])]
        with ThreadPoolExecutor(self._processes) as threads:
            return list(threads.map(self._ask, requests))

    def _ask(self, request: list[Any]) -> tuple[Found, bool]:
        child = self._idle.get()
        try:
            return child.ask(request)
        finally:
            self._idle.put(child)


class _Child:
    """One grading process, with a socket to it: started when it is asked, and again when it is gone."""

    def __init__(self, limits: _Limits, verifier: str) -> None:
        self._limits = limits
        self._verifier = verifier
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def ask(self, request: list[Any]) -> tuple[Found, bool]:
        """The verdict, and whether it was slow: took more than `SLOW` of a limit, or a second process.

        A process that dies, idle or at work, or does not answer in time though it hardly computes, is replaced and
        asked again: it may have been killed or stopped from outside. A second one that fares the same was the
        grading's own doing.
        """
        message = json.dumps(request, default=str).encode() + b"\n"
        wall = self._limits.wall
        if self._verifier == UNIT_TESTS:
            _, tests, _, _, metadata = request
            wall += seconds_for(tests, metadata)
        failure: Status = "error"
        for attempt in range(ATTEMPTS):
            try:
                connection = self._started()
                verdict, seconds = _exchange(connection, message, wall)
                return verdict, attempt > 0 or seconds > SLOW * self._limits.cpu
            except TimeoutError:
                failure = "timeout"
                self.stop()
            except (OSError, ValueError):  # the process could not start, or ended: no line, or half a line
                failure = "error"
                if self.stop() == -signal.SIGPROF:
                    return "timeout", True
        return failure, True

    def stop(self) -> int | None:
        """Kill the process and all that it started, whatever they do; returns its exit status if there was one."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is None:
            return None
        if self._process.returncode is None:  # once it is waited for, its number may be another's
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._process = None
        return status

    def _started(self) -> socket.socket:
        if self._socket is not None and self._process is not None and self._process.poll() is None:
            return self._socket
        self.stop()
        if self._verifier == MATH and find_spec("math_verify") is None:  # the process would only be gone
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        words = [sys.path, self._limits.memory, self._limits.cpu, self._verifier]
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(words)],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                start_new_session=True,
            )
        _exchange(self._socket, b"", START_SECONDS)
        return self._socket


def _exchange(connection: socket.socket, message: bytes, seconds: float) -> Any:
    """Send a message and read a line of JSON, both before one deadline.

    Raises:
        TimeoutError: at the deadline.
        OSError, ValueError: if the other end is gone.
    """
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


def _as_grade(found: Found, slow: bool) -> Grade:
    if isinstance(found, dict):
        return Grade(slow=slow, **found)
    return Grade(found is True, "ok" if isinstance(found, bool) else found, slow)


_shared = Grader()


@cache
def _shared_of(verifier: str) -> Grader:
    return Grader(verifier=verifier)


def grade_answer(
    response: str,
    answer: str,
    end_of_thought: str = END_OF_THOUGHT,
    *,
    verifier: str = MATH,
    problem: str = "",
    metadata: Mapping[str, Any] | None = None,
) -> Grade:
    r"""Grade a response with the process-wide grader of a verifier.

    Args:
        response: the generated text alone, without the prompt. What follows the first end of the thought is graded;
            without one, the final answer that the text states.
        answer: the reference answer; for math-verify bare or in `$...$` or `\boxed{...}`.
        end_of_thought: what closes a thought; R1's by default.
        verifier: math (math-verify), or another one's name: see docs/use/own_verifier.md.
        problem: for other verifiers, the problem as it stands in the data.
        metadata: likewise, the other columns of its row.
    """
    grader = _shared if verifier == MATH else _shared_of(verifier)
    return grader.grade(response, Reference(answer, problem, metadata or {}), end_of_thought)
