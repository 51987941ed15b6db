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
        self._phases[name] = self._phases.get(name, 0.0) + monotonic() - started

    def metrics(self) -> Metrics:
        """The seconds so far: of each phase, of what lies between, and of all of it."""
        total = monotonic() - self._started
        phases = {f"timing/{name}": seconds for name, seconds in self._phases.items()}
        other = total - sum(phases.values())
        return {**phases, "timing/other": other, "timing/step_total": total}
