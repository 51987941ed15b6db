"""Step markers of groups of responses as tensors.

Shapes: G groups, N responses a group, K steps (padded at the end).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from openrlhf_swap.errors import NonFiniteError


@dataclass(frozen=True)
class StepTrace:
    """One response of a group.

    Attributes:
        length: L, generated tokens, the end token included.
        correct: c, whether the answer was graded correct.
        answer_logprobs: l_0..l_K in nats per answer token. Used only if the response is correct.
        step_ends: e_1..e_K, the index of each step's last token in the response.
    """

    length: int
    correct: bool
    answer_logprobs: Sequence[float]
    step_ends: Sequence[int]


@dataclass(frozen=True)
class StepBatch:
    """G groups of N responses as tensors.

    Attributes:
        lengths: (G, N) int64.
        correct: (G, N) bool.
        answer_logprobs: (G, N, K+1) float64; arbitrary where there is no step.
        step_ends: (G, N, K) int64; arbitrary where there is no step.
        step_mask: (G, N, K) bool; False for every step of an incorrect response.
    """

    lengths: Tensor
    correct: Tensor
    answer_logprobs: Tensor
    step_ends: Tensor
    step_mask: Tensor

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StepTrace]]) -> StepBatch:
        """Check groups of equal size and pad their steps.

        Raises:
            ValueError: for an empty or unequal group, or step ends that do not fit the response.
            NonFiniteError: for a NaN or infinite log-probability of a correct response.
        """
        size = group_size(groups)
        traces = [trace for group in groups for trace in group]
        for position, trace in enumerate(traces):
            _check_trace(trace, f"response {position % size} of group {position // size}")

        scored = [trace.correct and len(trace.step_ends) > 0 for trace in traces]
        steps = max((len(t.step_ends) for t, used in zip(traces, scored, strict=True) if used), default=0)
        logprobs = torch.zeros(len(traces), steps + 1, dtype=torch.float64)
        ends = torch.zeros(len(traces), steps, dtype=torch.int64)
        mask = torch.zeros(len(traces), steps, dtype=torch.bool)
        for row, (trace, used) in enumerate(zip(traces, scored, strict=True)):
            if used:
                count = len(trace.step_ends)
                logprobs[row, : count + 1] = torch.tensor(trace.answer_logprobs, dtype=torch.float64)
                ends[row, :count] = torch.tensor(trace.step_ends)
                mask[row, :count] = True
        shape = (len(groups), size)
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([bool(trace.correct) for trace in traces]).view(shape),
            answer_logprobs=logprobs.view(*shape, -1),
            step_ends=ends.view(*shape, -1),
            step_mask=mask.view(*shape, -1),
        )


def group_size(groups: Sequence[Sequence[object]]) -> int:
    """The number of responses in each group; raises ValueError for an empty group or unequal ones."""
    sizes = {len(group) for group in groups}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"groups have sizes {sorted(sizes)}; every group needs the same number of responses")
    return sizes.pop()


def check_step_ends(step_ends: Sequence[int], length: int, where: str) -> None:
    """Raise ValueError for step ends that do not ascend within a response of this many tokens."""
    ends = list(step_ends)
    if ends and (ends[0] < 0 or ends[-1] >= length or any(a >= b for a, b in pairwise(ends))):
        raise ValueError(f"{where}: step_ends {ends} must ascend within 0..{length - 1}")


def _check_trace(trace: StepTrace, where: str) -> None:
    if trace.length < 0:
        raise ValueError(f"{where}: length is {trace.length}; use the number of generated tokens")
    if not trace.correct or len(trace.step_ends) == 0:
        return
    if len(trace.answer_logprobs) != len(trace.step_ends) + 1:
        raise ValueError(
            f"{where}: {len(trace.answer_logprobs)} answer_logprobs for {len(trace.step_ends)} step_ends; "
            "give l_0..l_K, one more than there are steps"
        )
    check_step_ends(trace.step_ends, trace.length, where)
    for k, value in enumerate(trace.answer_logprobs):
        if not math.isfinite(value):
            raise NonFiniteError(f"{where}: answer_logprobs[{k}] is {value}; a log-probability must be finite")
