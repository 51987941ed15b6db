"""The clock of a training step."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from openrlhf_swap.runs.metrics import Metrics


class StepClock:
    """Measures a step from its own creation, and the phases that the step consists of."""

    def __init__(self) -> None:
        self._started = monotonic()
        self._phases: Metrics = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = monotonic()
        yield
        self._phases[f"timing/{name}"] = monotonic() - started

    def metrics(self) -> Metrics:
        """The seconds so far: of each phase, of what lies between, and of all of it."""
        total = monotonic() - self._started
        other = total - sum(self._phases.values())
        return {**self._phases, "timing/other": other, "timing/step_total": total}
