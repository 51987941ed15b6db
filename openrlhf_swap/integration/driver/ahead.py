"""The sampler of an asynchronous run: it samples the next batches while the policy is updated."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from queue import SimpleQueue
from threading import Lock, Semaphore, Thread
from time import monotonic
from types import SimpleNamespace
from typing import Any

import ray

from openrlhf_swap.integration.driver.sampler import SampledBatch, Sampler
from openrlhf_swap.integration.driver.waiting import tell_engines
from openrlhf_swap.runs.checkpoints import LoopStates
from openrlhf_swap.runs.metrics import Metrics

STOP_SECONDS = 10  # that the thread has to notice that its engines are gone


class Ahead:
    """Runs a sampler ahead in a thread, with at most `--train.async_queue_size` batches waiting.

    The sampler has an objective of its own. Whole batches are sampled with the same weights:
    sampling and new weights take turns. With `--train.partial_rollout_enable` the engines pause for
    new weights instead, and a response may go on with them.
    """

    def __init__(self, sampler: Sampler, engines: list[Any], args: SimpleNamespace) -> None:
        self._sampler = sampler
        self._engines = engines
        self._args = args
        self._pauses_engines = args.train.partial_rollout_enable
        self._turns = _Turns()
        self._thread: Thread | None = None

    def resume(self, step: int, objective_state: LoopStates | None) -> None:
        """Go on after a step, before the first batch is sampled."""
        self._sampler.resume(step, objective_state)

    def batches(self, position: LoopStates) -> Iterator[SampledBatch]:
        """Yield the sampler's batches with their age, and raise its errors."""
        free = Semaphore(self._args.train.async_queue_size)
        sampled: SimpleQueue[SampledBatch | Exception | None] = SimpleQueue()

        def sample_ahead() -> None:
            batches = self._sampler.batches(position)
            batch: SampledBatch | Exception | None
            while True:
                free.acquire()
                try:
                    batch = self._sample(batches)
                except Exception as error:  # noqa: BLE001 - the loop raises it
                    batch = error
                sampled.put(batch)
                if not isinstance(batch, SampledBatch):
                    return

        self._thread = Thread(target=sample_ahead, name="sampler", daemon=True)
        self._thread.start()
        while True:
            batch = sampled.get()
            if batch is None:
                return
            if isinstance(batch, Exception):
                raise batch
            free.release()
            age = self._sampler.updates - batch.updates
            yield replace(batch, metrics=batch.metrics | {"swap/batch_age": float(age)})

    def _sample(self, batches: Iterator[SampledBatch]) -> SampledBatch | None:
        with self._turn():
            started = monotonic()
            batch = next(batches, None)
            if batch is None:
                return None
            seconds = {"timing/sampled_ahead": monotonic() - started}
            return replace(batch, metrics=batch.metrics | seconds)

    def evaluate(self, step: int) -> Metrics:
        """Sample the evaluation's prompts with the weights of a step."""
        with self._turn():
            return self._sampler.evaluate(step)

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Keep the engines from sampling while the block replaces their weights.

        An error in the block ends the run: paused engines are then ended, too (`stop`).
        """
        with self._turn():
            if self._pauses_engines:
                tell_engines(self._engines, self._args, "pause_generation")
            with self._sampler.replacing_weights():
                yield
            if self._pauses_engines:
                tell_engines(self._engines, self._args, "resume_generation")

    def _turn(self) -> AbstractContextManager[None]:
        """Keep the other thread from the engines; engines that pause need no turns."""
        return nullcontext() if self._pauses_engines else self._turns.turn()

    def stop(self) -> None:
        """End the engines and with them the thread, which must not wait while Ray shuts down."""
        for engine in self._engines:
            ray.kill(engine)
        if self._thread:
            self._thread.join(STOP_SECONDS)


class _Turns:
    """A lock of two threads: a thread that waits comes before one that has just had its turn."""

    def __init__(self) -> None:
        self._next = Lock()
        self._engines = Lock()

    @contextmanager
    def turn(self) -> Iterator[None]:
        with self._next:
            self._engines.acquire()
        try:
            yield
        finally:
            self._engines.release()
