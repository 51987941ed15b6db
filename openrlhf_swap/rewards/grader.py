"""Is the answer in a response right? math-verify behind a pool of processes with a hard time limit.

math-verify's own time limits use signals, which fail outside the main thread, and cannot interrupt every expression.
Here each grading runs in a child process that is killed and replaced when its time is up, so that no expression can
hang a rollout, and nothing is ever raised: a grade always comes back.

The children are plain programs, not `multiprocessing`'s: these import the caller's main module again, which a
notebook does not have, and a script without a main guard does not survive.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from queue import LifoQueue
from typing import Literal

from openrlhf_swap.rollouts.answers import text_after_thought
from openrlhf_swap.rollouts.families import R1

Status = Literal["ok", "no_answer", "timeout", "error"]
ATTEMPTS = 2
START_SECONDS = 120.0  # that a child may take to import the grader, on a busy machine
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from openrlhf_swap.rewards.worker import serve; serve(int(sys.argv[2]), int(sys.argv[3]))"
)


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    Attributes:
        correct: whether the answer equals the known one. Never True unless `status` is "ok".
        status: "ok" (graded), "no_answer" (the response states no answer), "timeout" (the time limit was hit) or
            "error" (the reference answer cannot be parsed, or the grader failed).
    """

    correct: bool
    status: Status


class Grader:
    """A pool of grading processes. Thread-safe; processes start at the first grading, and end with this one."""

    def __init__(self, processes: int = 2, time_limit: float = 10.0, memory_limit_gib: float = 4.0) -> None:
        """Set up a grader.

        Args:
            processes: how many responses are graded at a time.
            time_limit: seconds that one grading may run before its process is killed.
            memory_limit_gib: address space of a grading process.
        """
        self._processes = processes
        self._idle: LifoQueue[_Child] = LifoQueue()
        for _ in range(processes):
            self._idle.put(_Child(time_limit, int(memory_limit_gib * 2**30)))

    def grade(self, response: str, answer: str, end_of_thought: str = R1.end_of_thought) -> Grade:
        """Grade one response; see `grade_many`."""
        return self.grade_many([(response, answer)], end_of_thought)[0]

    def grade_many(self, pairs: Sequence[tuple[str, str]], end_of_thought: str = R1.end_of_thought) -> list[Grade]:
        """Grade (response, answer) pairs in parallel; returns one grade a pair, in order. Never raises.

        What follows the first `end_of_thought` of a response is graded; all of it if there is none.
        """
        visible = [(text_after_thought(response, end_of_thought), answer) for response, answer in pairs]
        verdicts = self._ask_all(visible)
        return [Grade(one, "ok") if isinstance(one, bool) else Grade(correct=False, status=one) for one in verdicts]

    def is_gradable(self, answers: Sequence[str]) -> list[bool]:
        """Whether each reference answer can be graded against at all."""
        return [verdict is True for verdict in self._ask_all([(answer,) for answer in answers])]

    def close(self) -> None:
        """Stop the processes. The grader can be used again; it then starts new ones."""
        children = [self._idle.get() for _ in range(self._processes)]
        for child in children:
            child.stop()
            self._idle.put(child)

    def _ask_all(self, requests: Sequence[Sequence[str]]) -> list[bool | Status]:
        if len(requests) == 1:
            return [self._ask(requests[0])]
        with ThreadPoolExecutor(self._processes) as threads:
            return list(threads.map(self._ask, requests))

    def _ask(self, request: Sequence[str]) -> bool | Status:
        child = self._idle.get()
        try:
            return child.ask(json.dumps(request))
        finally:
            self._idle.put(child)


class _Child:
    """One grading process: started when it is asked, and again when it is gone."""

    def __init__(self, time_limit: float, memory_limit: int) -> None:
        self._time_limit = time_limit
        self._memory_limit = memory_limit
        self._process: subprocess.Popen[str] | None = None

    def ask(self, request: str) -> bool | Status:
        """What the process answers, or what became of it. One that dies, idle or at work, is replaced and asked again.

        It may have been killed from outside, or by the grading itself, which then kills the second one, too.
        """
        for _ in range(ATTEMPTS):
            try:
                process = self._started()
                assert process.stdin is not None
                process.stdin.write(request + "\n")
                process.stdin.flush()
                return self._next_answer(process, self._time_limit)
            except TimeoutError:
                self.stop()
                return "timeout"
            except (OSError, ValueError):  # the process could not start, or ended: no line, or half a line
                self.stop()
        return "error"

    def stop(self) -> None:
        """Kill the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.stop()
        if find_spec("math_verify") is None:  # the process would only be gone
            raise ModuleNotFoundError("No module named 'math_verify'", name="math_verify")
        lifetime = str(int(self._time_limit) + 60)
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(self._memory_limit), lifetime],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._next_answer(self._process, START_SECONDS)
        return self._process

    @staticmethod
    def _next_answer(process: subprocess.Popen[str], seconds: float) -> bool | Status:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise TimeoutError
        answer: bool | Status = json.loads(process.stdout.readline())
        return answer


_shared = Grader()


def grade_answer(response: str, answer: str, end_of_thought: str = R1.end_of_thought) -> Grade:
    r"""Grade a response with the process-wide grader.

    Args:
        response: the generated text alone, without the prompt. What follows the first end of the thought is graded;
            the whole text if there is none.
        answer: the reference answer, bare or in `$...$` or `\boxed{...}`.
        end_of_thought: what closes a thought; R1's by default.
    """
    return _shared.grade(response, answer, end_of_thought)
