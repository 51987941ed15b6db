"""What is watched during a run: updates that did not happen, and accuracy or length that falls in."""

from __future__ import annotations

from collections import deque
from statistics import fmean

from openrlhf_swap.errors import NonFiniteError


class SkippedSteps:
    """Counts steps without an update, and ends a run that no longer gets one."""

    def __init__(self, limit: int) -> None:
        """Allow fewer than `limit` of them in a row."""
        self._limit = limit
        self.in_a_row = 0
        self.total = 0

    def observe(self, reason: str | None) -> None:
        """Count one step; `reason` says why it was skipped, None that it was not.

        Raises:
            NonFiniteError: when this was the last of `limit` skipped steps in a row.
        """
        if reason is None:
            self.in_a_row = 0
            return
        self.total += 1
        self.in_a_row += 1
        if self.in_a_row == self._limit:
            raise NonFiniteError(
                f"{self._limit} steps in a row were skipped, the last one because {reason}: the policy is no longer "
                "usable. Start again from the last checkpoint (--ckpt.load_enable) with a lower --actor.adam.lr; if "
                "that one is spoiled already, delete its folder, and the one before is used"
            )


class CollapseWatch:
    """Warns when accuracy or length falls far below what it was at the start of the run.

    The first `window` steps are the measure; after them, the mean over the last `window` steps is compared with it.
    """

    ACCURACY, LENGTH = 0.5, 0.1  # fractions of the measure; SWAP's own shortening stays far above a tenth

    def __init__(self, window: int = 10) -> None:
        """Compare means over `window` steps."""
        self._window = window
        self._measure: list[tuple[float, float]] = []
        self._recent: deque[tuple[float, float]] = deque(maxlen=window)
        self._warned: set[str] = set()

    def state_dict(self) -> dict[str, list]:
        """What a resumed run needs to compare with the same start."""
        return {"measure": list(self._measure), "recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, list]) -> None:
        """Take over what `state_dict` gave."""
        self._measure = list(state["measure"])
        self._recent.extend(state["recent"])

    def observe(self, accuracy: float, length: float) -> list[str]:
        """Look at one step; returns a warning for each quantity that has just fallen in.

        Args:
            accuracy: share of correct responses, 0 to 1.
            length: mean response length in tokens.
        """
        if len(self._measure) < self._window:
            self._measure.append((accuracy, length))
            return []
        self._recent.append((accuracy, length))
        if len(self._recent) < self._window:
            return []
        warnings = []
        names = (("accuracy", self.ACCURACY, "{:.1%}"), ("response length", self.LENGTH, "{:.0f} tokens"))
        for column, (name, fraction, form) in enumerate(names):
            before = fmean(row[column] for row in self._measure)
            now = fmean(row[column] for row in self._recent)
            if now >= fraction * before:
                self._warned.discard(name)
            elif name not in self._warned:
                self._warned.add(name)
                warnings.append(
                    f"{name} fell from {form.format(before)} in the first {self._window} steps to {form.format(now)} "
                    f"in the last {self._window}: look at rollouts/ and consider a lower --swap.process_weight"
                )
        return warnings
