"""Step markers of groups of responses as tensors.

Shapes: G groups, N responses a group, K steps (padded at the end), n states of all responses, d numbers of a state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from openrlhf_swap.errors import NonFiniteError


@dataclass(frozen=True)
class StepTrace:
    """One response of a group.

    Attributes:
        length: L, generated tokens, the end token included.
        correct: c, whether the answer was graded correct.
        answer_logprobs: l_0..l_K in nats per answer token. Used only if the response is correct.
        step_ends: e_1..e_K, the index of each step's last token in the response.
        states: (K+1, d) tensor or array for a critic: the policy's hidden state at the last token of the prompt and of
            each step. None for all responses where no critic is used.
    """

    length: int
    correct: bool
    answer_logprobs: Sequence[float] = ()
    step_ends: Sequence[int] = ()
    states: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class StepBatch:
    """G groups of N responses as tensors.

    Attributes:
        lengths: (G, N) int64.
        correct: (G, N) bool.
        answer_logprobs: (G, N, K+1) float64; arbitrary where there is no scored step.
        step_ends: (G, N, K) int64; arbitrary where there is no step.
        step_mask: (G, N, K) bool, the scored steps: False for every step of an incorrect response.
        state_mask: (G, N, K+1) bool, where a response has a state: before its first step, and after each.
        states: (n, d+3) float64 of all responses in order, and with each what has passed: its tokens, their root, the
            steps; `state_mask` tells which is whose. Empty where no states were read.
    """

    lengths: Tensor
    correct: Tensor
    answer_logprobs: Tensor
    step_ends: Tensor
    step_mask: Tensor
    state_mask: Tensor
    states: Tensor

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StepTrace]]) -> StepBatch:
        """Check groups of equal size and pad their steps.

        Raises:
            ValueError: for an empty or unequal group, or step ends or states that do not fit the response.
            NonFiniteError: for a NaN or infinite log-probability of a correct response.
        """
        sizes = {len(group) for group in groups}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(f"groups have sizes {sorted(sizes)}; every group needs the same number of responses")
        traces = [trace for group in groups for trace in group]
        has_states = any(trace.states is not None for trace in traces)
        # The steps of an incorrect response matter to a critic alone.
        ends_of = [list(trace.step_ends) if trace.correct or has_states else [] for trace in traces]
        steps = max(map(len, ends_of))
        logprobs = torch.zeros(len(traces), steps + 1, dtype=torch.float64)
        ends = torch.zeros(len(traces), steps, dtype=torch.int64)
        has_step, scored = torch.zeros(2, len(traces), steps, dtype=torch.bool)
        states = []
        for row, (trace, its_ends) in enumerate(zip(traces, ends_of, strict=True)):
            where, count = f"response {row % len(groups[0])} of group {row // len(groups[0])}", len(its_ends)
            _check_trace(trace, its_ends, has_states, where)
            ends[row, :count] = torch.tensor(its_ends, dtype=torch.int64)
            has_step[row, :count] = True
            if trace.correct and count and len(trace.answer_logprobs):
                logprobs[row, : count + 1] = torch.tensor(trace.answer_logprobs, dtype=torch.float64)
                scored[row, :count] = True
            if has_states:
                states.append(_checked_states(trace, where))
        passed = pad(ends + 1, (1, 0))
        has_state = pad(has_step, (1, 0), value=True)
        progress = torch.stack([passed, passed.sqrt(), torch.arange(steps + 1).expand_as(passed)], dim=-1)
        shape = (len(groups), len(groups[0]))
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([bool(trace.correct) for trace in traces]).view(shape),
            answer_logprobs=logprobs.view(*shape, -1),
            step_ends=ends.view(*shape, -1),
            step_mask=scored.view(*shape, -1),
            state_mask=has_state.view(*shape, -1),
            states=torch.cat([torch.cat(states), progress[has_state].double()], -1) if states else torch.empty(0, 0),
        )

    @property
    def tokens_left(self) -> Tensor:
        """(G, N, K+1) float64, tokens that follow each state; 0 where there is none."""
        left = self.lengths.unsqueeze(-1) - pad(self.step_ends + 1, (1, 0))
        return torch.where(self.state_mask, left, 0).double()


def _check_trace(trace: StepTrace, ends: list[int], has_states: bool, where: str) -> None:
    if trace.length < 0:
        raise ValueError(f"{where}: length is {trace.length}; use the number of generated tokens")
    needs_scores = trace.correct and len(ends) > 0
    scores = trace.answer_logprobs if needs_scores else ()
    if needs_scores and len(scores) != len(ends) + 1 and not (has_states and len(scores) == 0):
        raise ValueError(
            f"{where}: {len(scores)} answer_logprobs for {len(ends)} step_ends; "
            "give l_0..l_K, one more than there are steps"
        )
    if ends and (ends[0] < 0 or ends[-1] >= trace.length or any(a >= b for a, b in pairwise(ends))):
        raise ValueError(f"{where}: step_ends {ends} must ascend within 0..{trace.length - 1}")
    for k, value in enumerate(scores):
        if not math.isfinite(value):
            raise NonFiniteError(f"{where}: answer_logprobs[{k}] is {value}; a log-probability must be finite")


def _checked_states(trace: StepTrace, where: str) -> Tensor:
    states = torch.as_tensor(() if trace.states is None else trace.states)
    if states.dim() != 2 or len(states) != len(trace.step_ends) + 1:
        raise ValueError(
            f"{where}: states of shape {tuple(states.shape)} for {len(trace.step_ends)} step_ends; give one of the "
            "prompt's last token and one of each step's"
        )
    return states.double()
