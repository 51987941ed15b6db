"""One response on its way from the engine to the update."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from openrlhf_swap.algorithm.batch import StepTrace

GRADED_CORRECT = "swap/graded_correct"  # the grader's word on it, among what a reward function logs of a response


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned and what its steps scored.

    Attributes:
        prompt: as the chat template renders it.
        answer: the reference answer.
        response_ids: L token ids, the end token included.
        start: position of the response's first token in its (padded) row.
        reward: the grader's reward; ours are between 0 and 1.
        truncated: whether the token limit cut it off.
        step_ends: e_1..e_K, indices in the response; empty where no steps are scored.
        answer_logprobs: l_0..l_K in nats per answer token; empty before they are scored.
        probes: (kept tokens, share of correct answers) for each prefix that was continued for grading, in order.
        graded_correct: whether the grader called it correct; None if it gave a reward only.
        metadata: numbers that the objective keeps about the response from its sampling to the update.
    """

    prompt: str
    answer: str
    response_ids: Sequence[int]
    start: int
    reward: float
    truncated: bool = False
    step_ends: Sequence[int] = ()
    answer_logprobs: Sequence[float] = ()
    probes: Sequence[tuple[int, float]] = ()
    graded_correct: bool | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)

    @property
    def correct(self) -> bool:
        """c: what the grader says; for a reward function that gives a reward only, whether that is positive."""
        return self.reward > 0 if self.graded_correct is None else self.graded_correct

    def trace(self) -> StepTrace:
        """What the step arithmetic needs to know about the response."""
        return StepTrace(len(self.response_ids), self.correct, self.answer_logprobs, self.step_ends)


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
