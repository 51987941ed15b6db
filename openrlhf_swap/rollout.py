"""One response on its way from the rollout to the update."""

from __future__ import annotations

from dataclasses import dataclass, field

from openrlhf_swap.algorithm.advantages import StepTrace


@dataclass
class Rollout:
    """A response, what it earned and what its steps scored; positions are those of the padded row."""

    prompt: str
    answer: str
    response_ids: list[int]
    start: int
    """Position of the response's first token."""
    reward: float
    step_ends: list[int]
    answer_logprobs: list[float]
    notes: dict[str, float] = field(default_factory=dict)
    """What the objective noted about the response when it was sampled."""

    @property
    def correct(self) -> bool:
        """c: whether the response earned anything."""
        return self.reward > 0

    def trace(self) -> StepTrace:
        """What the arithmetic needs to know of it."""
        return StepTrace(len(self.response_ids), self.correct, self.answer_logprobs, self.step_ends)
