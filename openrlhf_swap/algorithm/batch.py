"""Step markers of groups of responses as tensors.

Shapes: G groups, N responses a group, K steps (padded at the end).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.plain import plain_flag, plain_floats, plain_int, plain_ints
from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, SIGNALS, Signal
from openrlhf_swap.errors import NonFiniteError


@dataclass(frozen=True)
class StepTrace:
    """One response of a group, with K steps. Numbers may come in tensors, arrays or lists.

    Attributes:
        length: L, the number of generated tokens, the end token included.
        correct: c, whether the answer was graded correct.
        answer_logprobs: (K+1) l_0..l_K in nats per answer token. Only a correct response needs
            them.
        step_ends: (K) e_1..e_K, the index of each step's last token in the response, ascending.
        signals: further numbers of the steps by name, (K) or (K+1) each (`algorithm.signals`):
            `need` (K) in nats per token, `entropy` (K) in nats.

    Raises:
        ValueError: for other numbers, a `correct` that is neither true nor false, such as a score
            of 0.5, and an unknown signal.
    """

    length: int
    correct: bool
    answer_logprobs: Sequence[float] = ()
    step_ends: Sequence[int] = ()
    signals: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        """Keep Python's own numbers."""
        keep = partial(object.__setattr__, self)
        keep("length", plain_int("length", self.length))
        keep("correct", plain_flag("correct", self.correct))
        keep("answer_logprobs", plain_floats("answer_logprobs", self.answer_logprobs))
        keep("step_ends", plain_ints("step_ends", self.step_ends))
        unknown = self.signals.keys() - SIGNALS.keys()
        if unknown:
            raise ValueError(f"signals has {min(unknown)!r}; known are {', '.join(SIGNALS)}")


@dataclass(frozen=True)
class StepBatch:
    """G groups of N responses as tensors. What stands where there is no step is arbitrary."""

    lengths: Tensor  # (G, N) int64
    correct: Tensor  # (G, N) bool
    step_ends: Tensor  # (G, N, K) int64
    step_mask: Tensor  # (G, N, K) bool, the scored steps; incorrect responses have none
    has_step: Tensor  # (G, N, K) bool, the steps, also those of incorrect responses if they count
    signals: Mapping[str, Tensor]  # (G, N, K or K+1) float64 by name

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StepTrace]]) -> StepBatch:
        """Check groups of equal size and pad their steps.

        Raises ValueError for an empty or unequal group, or step ends or signals that do not fit the
        response, and NonFiniteError for a NaN or infinite signal of a correct response.
        """
        traces = [trace for group in groups for trace in group]
        for trace in traces:
            if not isinstance(trace, StepTrace):
                raise ValueError(f"a group holds a {type(trace).__name__}; give StepTraces")
        sizes = {len(group) for group in groups}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"groups have sizes {sorted(sizes)}; every group needs the same number of responses"
            )
        (size,) = sizes
        shape = (len(groups), size)
        names = {ANSWER_LOGPROBS.name}
        for trace in traces:
            names |= trace.signals.keys()
        # The steps of an incorrect response matter only to a signal that all responses have, and
        # where there is such a signal, no response needs scores.
        shared = any(not SIGNALS[name].only_correct for name in names)
        responses = []
        for row, trace in enumerate(traces):
            where = f"response {row % size} of group {row // size}"
            responses.append(_Response.checked(where, trace, shared))
        counts = torch.tensor([len(response.ends) for response in responses]).view(shape)
        scored = torch.tensor([response.scored for response in responses]).view(shape)
        steps = int(counts.max())
        has_step = torch.arange(steps) < counts.unsqueeze(-1)
        ends = [torch.tensor(response.ends, dtype=torch.int64) for response in responses]
        signals = {}
        for name in names:
            signal = SIGNALS[name]
            width = signal.count(steps)
            values = [response.values(signal) for response in responses]
            signals[name] = _padded(values, width).view(*shape, width)
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([trace.correct for trace in traces]).view(shape),
            step_ends=_padded(ends, steps).view(*shape, steps),
            step_mask=has_step & scored.unsqueeze(-1),
            has_step=has_step,
            signals=signals,
        )

    @property
    def answer_logprobs(self) -> Tensor:
        """(G, N, K+1) float64, l_0..l_K; arbitrary where there is no scored step."""
        return self.signals[ANSWER_LOGPROBS.name]


@dataclass(frozen=True)
class _Response:
    """A response of a batch, and what of it counts.

    Attributes:
        name: which one it is, for messages.
        trace: what the caller gives.
        ends: e_1..e_K; empty where nothing is made of the steps.
        scored: whether the steps earn by the answer's scores.
    """

    name: str
    trace: StepTrace
    ends: list[int]
    scored: bool

    @classmethod
    def checked(cls, name: str, trace: StepTrace, shared: bool) -> _Response:
        """Check a response's length and steps; `shared` says that all responses have a signal."""
        ends = list(trace.step_ends) if trace.correct or shared else []
        needs_no_scores = shared and not trace.answer_logprobs
        scored = trace.correct and len(ends) > 0 and not needs_no_scores
        length = trace.length
        if length < 0:
            raise ValueError(f"{name}: length is {length}; use the number of generated tokens")
        bounds = pairwise([-1, *ends, length])
        if ends and not all(before < after for before, after in bounds):
            raise ValueError(f"{name}: step_ends {ends} must ascend within 0..{length - 1}")
        return cls(name, trace, ends, scored)

    def values(self, signal: Signal) -> Tensor:
        """(K or K+1,) float64; empty where the response has no value."""
        has_values = self.trace.correct or not signal.only_correct
        given = self.trace.signals.get(signal.name, ())
        if signal is ANSWER_LOGPROBS:
            has_values = self.scored
            given = self.trace.answer_logprobs
        if not has_values:
            return torch.empty(0, dtype=torch.float64)
        values = torch.as_tensor(given, dtype=torch.float64)
        steps = len(self.ends)
        if values.shape != (signal.count(steps),):
            each = "the prompt and of each step" if signal.per == "prefix" else "each step"
            raise ValueError(
                f"{self.name}: {signal.name} of shape {tuple(values.shape)} for {steps} "
                f"step_ends; give one of {each}"
            )
        broken = values.isinf() if signal.has_gaps else ~values.isfinite()
        if broken.any():
            place = int(broken.nonzero()[0])
            raise NonFiniteError(
                f"{self.name}: {signal.name}[{place}] is {values[place]}; a log-probability "
                "must be finite"
            )
        return values


def _padded(rows: Sequence[Tensor], width: int) -> Tensor:
    """(rows, width), 0 behind the end of a row."""
    padded = rows[0].new_zeros(len(rows), width)
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded
