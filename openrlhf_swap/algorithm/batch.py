"""Step markers of groups of responses as tensors.

Shapes: G groups, N responses a group, K steps (padded at the end), n states of all responses, d
numbers of a state.
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
from torch.nn.utils.rnn import pad_sequence

from openrlhf_swap.errors import NonFiniteError


@dataclass(frozen=True)
class StepTrace:
    """One response of a group.

    Attributes: length: L, generated tokens, the end token included. correct: c, whether the answer
        was graded correct. answer_logprobs: l_0..l_K in nats per answer token. Used only if the
        response is correct. step_ends: e_1..e_K, the index of each step's last token in the
        response. states: (K+1, d) tensor or array for a critic: the policy's hidden state at the
        last token of the prompt and of
            each step. None for all responses where no critic is used.
    """

    length: int
    correct: bool
    answer_logprobs: Sequence[float] = ()
    step_ends: Sequence[int] = ()
    states: Any = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Raise ValueError for a graded `correct`, which would count as fully correct."""
        if self.correct not in (0, 1):
            raise ValueError(
                f"correct is {self.correct!r}, neither right nor wrong: use True or False"
            )


@dataclass(frozen=True)
class StepBatch:
    """G groups of N responses as tensors.

    `states` are those of all responses in order, and with each what has passed: its tokens, their
    root, the steps; `state_mask` tells which is whose. Empty where no states were read.
    """

    lengths: Tensor  # (G, N) int64
    correct: Tensor  # (G, N) bool
    answer_logprobs: Tensor  # (G, N, K+1) float64; arbitrary where there is no scored step
    step_ends: Tensor  # (G, N, K) int64; arbitrary where there is no step
    step_mask: (
        Tensor  # (G, N, K) bool, the scored steps: False for every step of an incorrect response
    )
    state_mask: Tensor  # (G, N, K+1) bool, where a response has a state: before its first step, and after each
    states: Tensor  # (n, d+3) float64

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StepTrace]]) -> StepBatch:
        """Check groups of equal size and pad their steps.

        Raises ValueError for an empty or unequal group, or step ends or states that do not fit the
        response, and NonFiniteError for a NaN or infinite log-probability of a correct response.
        """
        sizes = {len(group) for group in groups}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"groups have sizes {sorted(sizes)}; every group needs the same number of responses"
            )
        shape = (len(groups), *sizes)
        traces = [trace for group in groups for trace in group]
        has_states = any(trace.states is not None for trace in traces)
        ends, logprobs, states = [], [], []
        for row, trace in enumerate(traces):
            # The steps of an incorrect response matter to a critic alone.
            its_ends = list(trace.step_ends) if trace.correct or has_states else []
            scores = list(trace.answer_logprobs) if trace.correct and its_ends else []
            where = f"response {row % shape[1]} of group {row // shape[1]}"
            _check(
                trace.length,
                its_ends,
                scores,
                needs_scores=trace.correct and not has_states,
                where=where,
            )
            ends.append(torch.tensor(its_ends, dtype=torch.int64))
            logprobs.append(
                torch.tensor(scores or [math.nan] * (len(its_ends) + 1), dtype=torch.float64)
            )
            if has_states:
                states.append(_checked_states(trace, where))
        step_ends = pad_sequence(ends, batch_first=True)
        answer_logprobs = pad_sequence(logprobs, batch_first=True, padding_value=math.nan)
        count = torch.tensor([len(its_ends) for its_ends in ends]).unsqueeze(-1)
        number = torch.arange(step_ends.shape[-1] + 1).expand(len(traces), -1)
        has_state, passed = number <= count, pad(step_ends + 1, (1, 0))
        progress = torch.stack([passed, passed.sqrt(), number], dim=-1)[has_state].double()
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([bool(trace.correct) for trace in traces]).view(shape),
            answer_logprobs=answer_logprobs.nan_to_num().view(*shape, -1),
            step_ends=step_ends.view(*shape, -1),
            step_mask=(has_state & ~answer_logprobs.isnan())[:, 1:].view(*shape, -1),
            state_mask=has_state.view(*shape, -1),
            states=torch.cat([torch.cat(states), progress], dim=-1)
            if states
            else torch.empty(0, 0),
        )

    @property
    def tokens_left(self) -> Tensor:
        """(G, N, K+1) float64, tokens that follow each state; 0 where there is none."""
        left = self.lengths.unsqueeze(-1) - pad(self.step_ends + 1, (1, 0))
        return torch.where(self.state_mask, left, 0).double()


def _check(
    length: int, ends: list[int], scores: list[float], needs_scores: bool, where: str
) -> None:
    if length < 0:
        raise ValueError(f"{where}: length is {length}; use the number of generated tokens")
    if ends and (scores or needs_scores) and len(scores) != len(ends) + 1:
        raise ValueError(
            f"{where}: {len(scores)} answer_logprobs for {len(ends)} step_ends; "
            "give l_0..l_K, one more than there are steps"
        )
    if ends and (ends[0] < 0 or ends[-1] >= length or any(a >= b for a, b in pairwise(ends))):
        raise ValueError(f"{where}: step_ends {ends} must ascend within 0..{length - 1}")
    for k, value in enumerate(scores):
        if not math.isfinite(value):
            raise NonFiniteError(
                f"{where}: answer_logprobs[{k}] is {value}; a log-probability must be finite"
            )


def _checked_states(trace: StepTrace, where: str) -> Tensor:
    states = torch.as_tensor(() if trace.states is None else trace.states)
    if states.dim() != 2 or len(states) != len(trace.step_ends) + 1:
        raise ValueError(
            f"{where}: states of shape {tuple(states.shape)} for {len(trace.step_ends)} step_ends; give one of the "
            "prompt's last token and one of each step's"
        )
    return states.double()
