"""What is monitored during a run: skipped updates, and accuracy or length that collapses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from math import sqrt
from statistics import fmean, stdev
from typing import Any

from openrlhf_swap.errors import InertRunError, NonFiniteError

DISTANCE, DEVIATION = "swap/weights_from_uniform", "swap/local_gain_std"
UNIFORM = 0.1  # less of the penalty than this on other steps than uniform weights is hardly a treatment


class SkippedSteps:
    """Counts steps without an update, and stops a run that no longer makes any."""

    _REMEDY = (
        "the policy is no longer usable. Start again from the last checkpoint (--ckpt.load_enable) with a lower "
        "--actor.adam.lr; if that one is already spoiled, delete its folder to use the one before"
    )

    def __init__(self, limit: int) -> None:
        """Allow fewer than `limit` skipped steps in a row."""
        self._limit = limit
        self.in_a_row = 0
        self.total = 0

    def observe(self, reason: str | None) -> None:
        """Count one step; `reason` says why it was skipped, and is None if it was not.

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
                f"{self._limit} steps in a row were skipped, the last one because {reason}: {self._REMEDY}"
            )

    def end(self) -> None:
        """Check the end of the run.

        Raises:
            NonFiniteError: when its last step was skipped: the policy that would be delivered may be spoiled.
        """
        if self.in_a_row:
            raise NonFiniteError(
                f"the run ended with {self.in_a_row} skipped steps, and its policy was not exported: {self._REMEDY}"
            )


class CollapseGuard:
    """Warns when accuracy falls suddenly, or when accuracy or length falls far below what it was at the start.

    Sudden: the mean accuracy of the last three steps against that of up to ten before them. A fall counts when it is
    more than the batches' own differences explain (four standard errors) and enough to matter (ten points).
    Far below the start: the mean of the last `window` steps against that of the first `window`.
    """

    ACCURACY, LENGTH = 0.5, 0.1  # fractions of the start; SWAP's own shortening stays far above a tenth
    STEPS, BEFORE, LEAST = 3, 10, 5  # LEAST steps to compare with, or their deviation means nothing
    POINTS, ERRORS = 0.1, 4.0

    def __init__(self, window: int = 10) -> None:
        """Compare means over `window` steps with the start."""
        self._window = window
        self._start: list[tuple[float, float]] = []
        self._recent: deque[tuple[float, float]] = deque(maxlen=max(window, self.BEFORE + self.STEPS))  # after those
        self._fallen: set[str] = set()

    def state_dict(self) -> dict[str, list[Any]]:
        """What a resumed run compares with."""
        return {"measure": list(self._start), "recent": list(self._recent), "fallen": sorted(self._fallen)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self._start = list(state["measure"])
        self._recent.extend(state["recent"])
        self._fallen = set(state["fallen"])

    def observe(self, accuracy: float, length: float) -> list[str]:
        """Look at one step; returns a warning for each fall, once until it is over.

        Args:
            accuracy: share of correct responses, 0 to 1.
            length: mean response length in tokens.
        """
        (self._start if len(self._start) < self._window else self._recent).append((accuracy, length))
        falls = dict([*self._below_the_start(), *self._sudden()])
        warnings = [text for name, text in falls.items() if name not in self._fallen]
        self._fallen = set(falls)
        return warnings

    def _below_the_start(self) -> Iterator[tuple[str, str]]:
        if len(self._recent) < self._window:
            return
        last = list(self._recent)[-self._window :]
        names = (("accuracy", self.ACCURACY, "{:.1%}"), ("response length", self.LENGTH, "{:.0f} tokens"))
        for column, (name, fraction, form) in enumerate(names):
            before, now = (fmean(row[column] for row in rows) for rows in (self._start, last))
            if now < fraction * before:
                yield (
                    name,
                    f"{name} fell from {form.format(before)} in the first {self._window} steps to {form.format(now)} "
                    f"in the last {self._window}: look at rollouts/ and consider a lower --swap.process_weight",
                )

    def _sudden(self) -> Iterator[tuple[str, str]]:
        seen = [accuracy for accuracy, _ in (*self._start, *self._recent)][-self.BEFORE - self.STEPS :]
        before, recent = seen[: -self.STEPS], seen[-self.STEPS :]
        if len(before) < self.LEAST:
            return
        was, now = fmean(before), fmean(recent)
        if was - now > max(self.POINTS, self.ERRORS * stdev(before) / sqrt(self.STEPS)):
            yield (
                "suddenly",
                f"accuracy fell from {was:.1%} to {now:.1%} within {self.STEPS} steps: if it does not come back, "
                "stop, go back to a checkpoint and lower --actor.adam.lr",
            )


def first_step_warnings(metrics: dict[str, float]) -> list[str]:
    """Warn of what most responses of the first step lack, with remedies, from the step's metrics."""
    shares = {
        "rollout/truncated_rate": "were cut off at --rollout.max_new_tokens: raise it, and --data.max_len with it",
        "swap/grader_no_answer": r"state no answer: ask for one in \boxed{}, as openrlhf-swap prepare does",
        "swap/thought_unclosed_frac": (
            "do not close their thought, so their steps end where they state their answer: a model that does think "
            "needs another --swap.end_of_thought, or more tokens"
        ),
    }
    found = {name: metrics.get(name, 0.0) for name in shares}
    return [f"{share:.0%} of the responses {shares[name]}" for name, share in found.items() if share > 0.5]


class UniformWeights:
    """Says once that the penalty's weights are nearly uniform: tau is large beside the spread of the gains."""

    STEPS = 5

    def __init__(self, tau: float | str | None) -> None:
        """Look at a run with this tau; None looks at nothing."""
        self._tau = tau
        self._seen: list[dict[str, float]] = []

    def observe(self, metrics: dict[str, float]) -> list[str]:
        """Look at one step's `swap/` metrics; returns the note after the last of the first steps with a penalty."""
        if self._tau is None or not {DISTANCE, DEVIATION} <= metrics.keys():
            return []
        self._seen.append(metrics)
        if len(self._seen) < self.STEPS:
            return []
        distance, deviation = (fmean(seen[name] for seen in self._seen) for name in (DISTANCE, DEVIATION))
        tau, self._tau = self._tau, None
        if distance >= UNIFORM:
            return []
        return [
            f"the penalty's weights are nearly uniform: only {distance:.1%} of the penalty falls on other steps than "
            f"uniform weights would choose. Local gains have a standard deviation of {deviation:.2g} nats, and "
            f"--swap.tau is {tau}; with 0.5sd the weights would follow the gains"
        ]


class SelfTest:
    """Stops a run in which the process term never reaches an update, or is meaningless when it does.

    The former looks healthy but trains plain GRPO: the label column is wrong, or responses have no reasoning. The
    latter has a close template that the model does not understand: after it the reference answer is unlikely even
    with all of a correct response's reasoning, or no likelier than without it.
    """

    KNOWN, UNKNOWN = -1.0, -3.0  # nats per answer token: 37% and 5%

    def __init__(self, steps: int) -> None:
        """Test the first `steps` training steps; 0 tests nothing."""
        self._steps_left = steps
        self._seen: list[dict[str, float]] = []

    def observe(self, metrics: dict[str, float]) -> None:
        """Look at one step's `swap/` metrics.

        Raises:
            InertRunError: when the last step of the test ends, and no process term was different from zero, or the
                answers' log-probabilities say that the close template means nothing.
        """
        if self._steps_left == 0:
            return
        self._seen.append(metrics)
        self._steps_left -= 1
        if self._steps_left:
            return
        off = "(--swap.self_test_steps 0 switches this test off)"
        if not any(seen.get("swap/adv_process_absmean", 0.0) > 0 for seen in self._seen):
            raise InertRunError(
                f"no correct rollout got a non-zero process term in the first {len(self._seen)} steps: "
                f"{self._reason()} {off}"
            )
        scored = [seen for seen in self._seen if "swap/answer_logprob_first" in seen]
        first, last = (fmean(seen[f"swap/answer_logprob_{end}"] for seen in scored) for end in ("first", "last"))
        if last < self.UNKNOWN or (last < self.KNOWN and last <= first):
            raise InertRunError(
                f"--swap.close_template means nothing to the model: after it the reference answer's log-probability "
                f"is {first:.2f} nats a token before a correct response and {last:.2f} after its last step (means of "
                f"the first {len(self._seen)} steps); use the text with which the model ends its thought and opens "
                f"its answer, or auto {off}"
            )

    def _reason(self) -> str:
        def largest(name: str) -> float:
            return max(metrics.get(f"swap/{name}", 0.0) for metrics in self._seen)

        if largest("accuracy") == 0:
            return (
                "no rollout was graded correct; look at rollouts/ in the output folder, and check "
                "--data.label_key, the chat template and --rollout.max_new_tokens"
            )
        if largest("steps_per_rollout") == 0:
            return "the correct rollouts have no reasoning; check the chat template and --swap.end_of_thought"
        return (
            "every step of the correct rollouts has the same gain; check --swap.step_tokens (one step a response "
            "gives no signal when all gains are equal) and --swap.close_template"
        )
