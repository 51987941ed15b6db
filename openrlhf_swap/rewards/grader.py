"""Is the answer in a response right? math-verify behind a pool of processes with a hard time limit.

math-verify's own time limits use signals, which fail outside the main thread, and cannot interrupt every expression.
Here each grading runs in a child process that is killed and replaced when its time is up, so that no expression can
hang a rollout, and nothing is ever raised: a grade always comes back.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
from collections.abc import Sequence
from concurrent.futures import TimeoutError as DeadlineError
from dataclasses import dataclass
from typing import Literal

from pebble import ProcessPool

from openrlhf_swap.rewards import worker

Status = Literal["ok", "no_answer", "timeout", "error"]


@dataclass(frozen=True)
class Grade:
    """The verdict on one response.

    Attributes:
        correct: whether the answer equals the known one. Never True unless `status` is "ok".
        status: "ok" (graded), "no_answer" (nothing to grade in the response), "timeout" (the time limit was hit) or
            "error" (the known answer cannot be parsed, or the grader failed).
    """

    correct: bool
    status: Status


class Grader:
    """A pool of grading processes. Thread-safe; processes start at the first grading."""

    def __init__(self, processes: int = 2, time_limit: float = 10.0, memory_limit_gib: float = 4.0) -> None:
        """Set up a grader.

        Args:
            processes: how many responses are graded at a time.
            time_limit: seconds that one grading may run before its process is killed.
            memory_limit_gib: address space of a grading process.
        """
        self._processes = processes
        self._time_limit = time_limit
        self._memory_limit = int(memory_limit_gib * 2**30)
        self._lock = threading.Lock()
        self._pool: ProcessPool | None = None

    def grade(self, response: str, answer: str) -> Grade:
        """Grade one response; see `grade_many`."""
        return self.grade_many([(response, answer)])[0]

    def grade_many(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        """Grade (response, answer) pairs in parallel; returns one grade a pair, in order. Never raises."""
        with self._lock:
            pool = self._started_pool()
            futures = [pool.schedule(worker.grade, args=pair, timeout=self._time_limit) for pair in pairs]
        return [_result(future) for future in futures]

    def is_gradable(self, answers: Sequence[str]) -> list[bool]:
        """Whether each known answer can be graded against at all."""
        with self._lock:
            pool = self._started_pool()
            futures = [
                pool.schedule(worker.is_parsable, args=(answer,), timeout=self._time_limit) for answer in answers
            ]
        return [_value(future) is True for future in futures]

    def close(self) -> None:
        """Stop the processes. The grader can be used again; it then starts new ones."""
        with self._lock:
            if self._pool is not None:
                self._pool.stop()
                self._pool.join()
                self._pool = None

    def _started_pool(self) -> ProcessPool:
        if self._pool is None:
            self._pool = ProcessPool(
                max_workers=self._processes,
                # A forked child would inherit threads and locks of Ray, vLLM and CUDA.
                context=multiprocessing.get_context("spawn"),
                initializer=worker.initialise,
                initargs=(self._memory_limit,),
            )
            atexit.register(self.close)
        return self._pool


_shared = Grader()


def grade_answer(response: str, answer: str) -> Grade:
    r"""Grade a response with the process-wide grader.

    Args:
        response: the generated text alone, without the prompt. What follows the first `</think>` is graded; the whole
            text if there is none.
        answer: the known answer, bare or in `$...$` or `\boxed{...}`.
    """
    return _shared.grade(response, answer)


def _value(future) -> object:  # noqa: ANN001 (pebble does not export its future type)
    """The future's result, or the status that stands for its failure."""
    try:
        return future.result()
    except DeadlineError:
        return "timeout"
    except Exception:  # noqa: BLE001 (a process boundary: whatever ended the child, the grade is "error")
        return "error"


def _result(future) -> Grade:  # noqa: ANN001
    value = _value(future)
    if isinstance(value, bool):
        return Grade(correct=value, status="ok")
    return Grade(correct=False, status=value)
