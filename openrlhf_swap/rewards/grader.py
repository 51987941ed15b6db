"""Is a response correct? A pool of processes with hard limits says so.

A verifier may hang or crash in them.

math-verify's own time limits use signals, which fail outside the main thread and cannot interrupt
every expression. Here the kernel ends a process when its CPU time is used up, and the process is
replaced. Wall time only guards against a process that does not run: on a busy host every grading
gets its turn. `multiprocessing`'s processes would import the caller's main module again: a notebook
has none, and a script without a main guard does not survive that.
"""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import traceback
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from queue import LifoQueue
from typing import Any, Literal

from openrlhf_swap.errors import ConfigError, check_text
from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT, is_closed, text_after_thought
from openrlhf_swap.rewards.references import Reference, given_answer
from openrlhf_swap.rewards.verifiers import MATH, THOUGHT_CLOSED, find_verifier

MEMORY = 4 * 2**30  # bytes of address space of a grading process
ATTEMPTS = 2
START_SECONDS = 120.0  # that a process may take to import the verifier, on a busy machine
WALL_TIME_FACTOR = 6  # wall time that a grading may take, in CPU time limits
SLOW = 0.5  # share of the CPU time limit; a grading that leaves less counts as slow
_PROGRAM = (
    "import json, sys; path, *limits = json.loads(sys.argv[1]); sys.path[:] = path; "
    "from openrlhf_swap.rewards.grader import serve; serve(*limits)"
)


@dataclass(frozen=True)
class Grade:
    """The verdict on one response. Grades that differ in `slow`, `why` or `stated` alone are equal.

    Attributes:
        correct: never True unless `status` is "ok".
        status: "ok" (graded), "no_answer" (the response states no answer), "timeout" (a time limit
            was hit) or "error" (the reference answer cannot be parsed, or the verifier failed).
        slow: whether grading came near its time limit, hit it, or needed a second process.
        score: the reward, between 0 and 1; 1.0 or 0.0 unless a verifier says otherwise.
        why: a verifier's reason, or its error.
        stated: the answer that a verifier read in the response.
    """

    correct: bool
    status: Literal["ok", "no_answer", "timeout", "error"]
    slow: bool = field(default=False, compare=False, repr=False)
    score: float = field(default=0.0, repr=False)
    why: str = field(default="", compare=False, repr=False)
    stated: str | None = field(default=None, compare=False, repr=False)


_LATE = Grade(False, "timeout", slow=True)
_FAILED = Grade(False, "error", slow=True)


class Grader:
    """A pool of grading processes. Thread-safe.

    Processes start at the first grading, and end with this one.
    """

    def __init__(self, processes: int = 2, time_limit: float = 10.0, verifier: str = MATH) -> None:
        """Make the pool.

        Args:
            processes: how many responses are graded at a time.
            time_limit: CPU seconds of one grading, after which its process is ended. A process that
                does not answer within six times as many seconds of wall time is replaced, and its
                successor asked once.
            verifier: math (math-verify), or another one's name, as `--swap.grader` takes it.
        """
        self._processes = processes
        # The last one used is the likeliest to be started.
        self._idle: LifoQueue[_Child] = LifoQueue()
        for _ in range(processes):
            self._idle.put(_Child(verifier, time_limit))

    def grade(
        self,
        response: str,
        answer: str | Reference,
        end_of_thought: str = END_OF_THOUGHT,
    ) -> Grade:
        """Grade one response as `grade_many` does."""
        return self.grade_many([(response, answer)], end_of_thought)[0]

    def grade_many(
        self, pairs: Sequence[tuple[str, str | Reference]], end_of_thought: str = END_OF_THOUGHT
    ) -> list[Grade]:
        """Grade responses in parallel.

        Args:
            pairs: a response and its reference answer each.
            end_of_thought: what closes a thought. The text after the first of them is graded, or
                all of a response without one. There math-verify and `multiple_choice` ask for a
                stated final answer, because a number in a thought is no answer.

        Returns:
            A grade for each pair, in order.

        Raises:
            DataError: for a response that is no text, or an answer that is neither text nor a
                number; never for what they say.
        """
        requests = []
        for response, answer in pairs:
            check_text("response", response)
            known = answer if isinstance(answer, Reference) else Reference(given_answer(answer))
            requests.append(
                {
                    "problem": known.problem,
                    "answer": known.answer,
                    "response": text_after_thought(response, end_of_thought),
                    "metadata": {
                        **known.metadata,
                        THOUGHT_CLOSED: is_closed(response, end_of_thought),
                    },
                }
            )
        with ThreadPoolExecutor(self._processes) as threads:
            return list(threads.map(self._ask, requests))

    def is_gradable(self, answers: Sequence[str]) -> list[bool]:
        """Whether math-verify can grade against each reference answer at all."""
        grades = self.grade_many([("", answer) for answer in answers])
        return [grade.status == "no_answer" for grade in grades]

    def close(self) -> None:
        """Stop the processes. The grader can be used again; it then starts new ones."""
        children = [self._idle.get() for _ in range(self._processes)]
        for child in children:
            child.stop()
            self._idle.put(child)

    def _ask(self, request: dict[str, Any]) -> Grade:
        line = json.dumps(request, default=str) + "\n"
        child = self._idle.get()
        try:
            return child.ask(line.encode())
        finally:
            self._idle.put(child)


class _Child:
    """One grading process, and a socket to it.

    The process starts at the first question, and again at the next one after it has ended.
    """

    def __init__(self, verifier: str, cpu_seconds: float) -> None:
        self._verifier = verifier
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = WALL_TIME_FACTOR * cpu_seconds
        self._running: tuple[subprocess.Popen[bytes], socket.socket] | None = None

    def ask(self, message: bytes) -> Grade:
        """The grade that the process answers.

        A process may have been killed or stopped from outside. So one that dies, or is late though
        it hardly computes, is replaced, and its successor is asked again. If that fares the same,
        the grading itself is to blame.
        """
        grade = _FAILED
        for attempt in range(ATTEMPTS):
            try:
                reply = _exchange(self._start(), message, self._wall_seconds)
                reply["slow"] |= attempt > 0
                return Grade(**reply)
            except TimeoutError:
                grade = _LATE
                self.stop()
            except (OSError, ValueError):  # it could not start, or ended: no line, or half a line
                grade = _FAILED
                if self.stop() == -signal.SIGPROF:  # its CPU time is used up
                    return _LATE
        return grade

    def stop(self) -> int | None:
        """Kill the process and all that it started; returns its exit status if there was one."""
        if self._running is None:
            return None
        process, connection = self._running
        self._running = None
        connection.close()
        if process.returncode is None:  # once it is waited for, its number may be another's
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        return process.wait()

    def _start(self) -> socket.socket:
        if self._running and self._running[0].poll() is None:
            return self._running[1]
        self.stop()
        if self._verifier == MATH and find_spec("math_verify") is None:
            # Of the process one would only see that it has ended.
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        arguments = json.dumps([sys.path, self._cpu_seconds, self._verifier])
        command = [sys.executable, "-c", _PROGRAM, arguments]
        ours, theirs = socket.socketpair()
        with theirs:
            end = theirs.fileno()
            process = subprocess.Popen(command, stdin=end, stdout=end, start_new_session=True)
        self._running = process, ours
        _exchange(ours, b"", START_SECONDS)
        return ours


def _exchange(connection: socket.socket, message: bytes, seconds: float) -> Any:
    """Send a message and read a line of JSON that may take as long; else OSError or ValueError."""
    connection.settimeout(seconds)
    connection.sendall(message)
    with connection.makefile("rb") as replies:
        return json.loads(replies.readline())


def serve(cpu_limit: float, name: str) -> None:
    """A grading process: says "ready", then answers lines of JSON until its standard input ends.

    A request has the arguments of `Verifier.judge`, and a reply the fields of a grade. The kernel
    ends the process by SIGPROF after `cpu_limit` seconds of CPU time for one request, in the middle
    of any computation.
    """
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a library may print
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes standard input
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    verifier = find_verifier(name)
    print(json.dumps("ready"), file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, cpu_limit)
        try:
            reply = dict(vars(verifier.judge(**json.loads(line))))
            reply["status"] = "ok" if reply.pop("answered") else "no_answer"
        except Exception as error:  # noqa: BLE001 (code that we have not seen)
            why = traceback.format_exception_only(error)[-1].strip()
            if isinstance(error, ConfigError):
                why = str(error)
            elif name != MATH:  # a parser fails on many a text
                warnings.warn(traceback.format_exc(), stacklevel=1)  # which is shown once
            reply = {"correct": False, "status": "error", "why": why}
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        reply["slow"] = left < SLOW * cpu_limit
        print(json.dumps(reply), file=replies, flush=True)


_shared = cache(lambda verifier: Grader(verifier=verifier))


def grade_answer(
    response: str,
    answer: str | Reference,
    end_of_thought: str = END_OF_THOUGHT,
    verifier: str = MATH,
) -> Grade:
    r"""Grade a response with the process-wide grader of a verifier.

    Args:
        response: the generated text alone, without the prompt. The text after the first end of the
            thought is graded; without one, the final answer that the text states.
        answer: the reference answer; for math-verify bare or in `$...$` or `\boxed{...}`, for other
            verifiers perhaps a `Reference`, with the problem and the other columns of its row.
        end_of_thought: what closes a thought; R1's by default.
        verifier: math (math-verify), or another one's name, as `--swap.grader` takes it.

    Returns:
        The grade; its `status` is "error" for a verifier that cannot be loaded.

    Raises:
        DataError: for a response that is no text, or an answer that is neither text nor a number.
        ModuleNotFoundError: where math-verify is not installed.
    """
    return _shared(verifier).grade(response, answer, end_of_thought)
