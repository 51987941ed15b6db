"""Complete groups of rollouts, and the step signals computed from them.

Shapes: G groups, N responses a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepSignals, step_signals
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.length_critic import StateBatch
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Rollout


@dataclass(frozen=True)
class Batch:
    """G groups of N rollouts, complete and in order.

    Attributes:
        groups: the rollouts.
        coefficients: those of the step arithmetic.
        reader: decodes responses and finds the end of their thought.
    """

    groups: Sequence[Sequence[Rollout]]
    coefficients: Coefficients
    reader: ResponseReader

    @cached_property
    def rewards(self) -> Tensor:
        """(G, N) float64, the grader's rewards."""
        return self.each(lambda rollout: rollout.reward)

    @cached_property
    def correct(self) -> Tensor:
        """(G, N) bool."""
        return self.each(lambda rollout: rollout.correct).bool()

    @cached_property
    def truncated(self) -> Tensor:
        """(G, N) bool, cut off by the token limit."""
        return self.each(lambda rollout: rollout.truncated).bool()

    @cached_property
    def closed(self) -> Tensor:
        """(G, N) bool, whether the thought was closed."""
        return self.each(lambda rollout: self.reader.thought_length(rollout.response_ids) is not None).bool()

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return self.each(lambda rollout: len(rollout.response_ids)).long()

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; without steps for an objective that needs no scores."""
        return StepBatch.from_traces([[rollout.trace() for rollout in group] for group in self.groups])

    @cached_property
    def signals(self) -> StepSignals:
        """The step signals computed from the markers."""
        return step_signals(self.steps, self.coefficients)

    @cached_property
    def states(self) -> StateBatch:
        """The policy's states at step ends, for an objective that reads them."""
        return StateBatch.from_traces([[rollout.state_trace() for rollout in group] for group in self.groups])

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """Apply a function to every rollout; (G, N) float64."""
        return torch.tensor([[function(rollout) for rollout in group] for group in self.groups], dtype=torch.float64)
