"""One response on its way from the engine to the update."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from openrlhf_swap.algorithm.batch import StepTrace
from openrlhf_swap.algorithm.length_critic import StateTrace


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned and what its steps scored.

    Attributes:
        prompt: as the chat template renders it.
        answer: the reference answer.
        response_ids: L token ids, the end token included.
        prompt_ids: token ids of the prompt, as the engine got them.
        reward: the grader's reward; ours are between 0 and 1.
        truncated: whether the token limit cut it off.
        step_ends: e_1..e_K, indices in the response; empty where steps are neither scored nor their states read.
        answer_logprobs: l_0..l_K in nats per answer token; empty before they are scored.
        states: (K+1, d) float32, the policy's hidden states at the last token of the prompt and of each step; None
            where they are not read.
        probes: (kept tokens, share of correct answers) for each prefix that was continued for grading, in order.
        graded_correct: whether the grader called it correct; None if it gave a reward only.
        metadata: numbers that the objective keeps about the response from its sampling to the update.
        record: what else OpenRLHF's engine returned, for OpenRLHF's own row of the response.
    """

    prompt: str
    answer: str
    response_ids: Sequence[int]
    prompt_ids: Sequence[int]
    reward: float
    truncated: bool = False
    step_ends: Sequence[int] = ()
    answer_logprobs: Sequence[float] = ()
    states: Tensor | None = field(default=None, compare=False)
    probes: Sequence[tuple[int, float]] = ()
    graded_correct: bool | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def start(self) -> int:
        """Position of the response's first token in its row."""
        return len(self.prompt_ids)

    @property
    def correct(self) -> bool:
        """c: what the grader says; for a reward function that gives a reward only, whether that is positive."""
        return self.reward > 0 if self.graded_correct is None else self.graded_correct

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """(K+1) positions in the row: the last prompt token's, then each step's last token's."""
        return (self.start - 1, *(self.start + end for end in self.step_ends))

    def trace(self) -> StepTrace:
        """What the step arithmetic needs to know about the response; no steps where they are not scored."""
        ends = self.step_ends if self.answer_logprobs else ()
        return StepTrace(len(self.response_ids), self.correct, self.answer_logprobs, ends)

    def state_trace(self) -> StateTrace:
        """What a critic needs to know about the response."""
        return StateTrace(len(self.response_ids), self.correct, self.step_ends, self.states)


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
