"""What a step costs: the tokens it took and the change of what is left (the TD error of a critic of length).

Shapes: G groups, N responses a group, K steps (padded at the end), A tokens of the longest response, n states of all
responses, d numbers of a state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import per_token
from openrlhf_swap.algorithm.batch import check_step_ends, group_size
from openrlhf_swap.algorithm.penalty import target_lengths
from openrlhf_swap.algorithm.state_critic import StateCritic


@dataclass(frozen=True)
class StateTrace:
    """One response of a group, with what the policy's states were.

    Attributes:
        length: L, generated tokens, the end token included.
        correct: c, whether the answer was graded correct.
        step_ends: e_1..e_K, the index of each step's last token in the response.
        states: (K+1, d) tensor or array: the hidden state at the last token of the prompt and of each step.
    """

    length: int
    correct: bool
    step_ends: Sequence[int]
    states: Any


@dataclass(frozen=True)
class StateBatch:
    """G groups of N responses as tensors.

    Attributes:
        lengths: (G, N) int64.
        correct: (G, N) bool.
        step_ends: (G, N, K) int64; arbitrary where there is no step.
        step_mask: (G, N, K) bool, True for the steps of right and wrong responses.
        states: (n, d+3) of all responses in order, and with each what has passed: its tokens, their root, the steps;
            `state_mask` tells which is whose.
    """

    lengths: Tensor
    correct: Tensor
    step_ends: Tensor
    step_mask: Tensor
    states: Tensor

    @classmethod
    def from_traces(cls, groups: Sequence[Sequence[StateTrace]]) -> StateBatch:
        """Check groups of equal size and pad their steps.

        Raises:
            ValueError: for an empty or unequal group, or step ends or states that do not fit the response.
        """
        size = group_size(groups)
        traces = [trace for group in groups for trace in group]
        shape, steps = (len(groups), size), max(len(trace.step_ends) for trace in traces)
        ends = torch.zeros(len(traces), steps, dtype=torch.int64)
        mask = torch.zeros(len(traces), steps, dtype=torch.bool)
        states = []
        for row, trace in enumerate(traces):
            where, count = f"response {row % size} of group {row // size}", len(trace.step_ends)
            check_step_ends(trace.step_ends, trace.length, where)
            states.append(torch.as_tensor(trace.states))
            if states[-1].dim() != 2 or len(states[-1]) != count + 1:
                raise ValueError(
                    f"{where}: states of shape {tuple(states[-1].shape)} for {count} step_ends; give one of the "
                    "prompt's last token and one of each step's"
                )
            ends[row, :count] = torch.tensor(list(trace.step_ends), dtype=torch.int64)
            mask[row, :count] = True
        passed = torch.nn.functional.pad(ends + 1, (1, 0))
        place = torch.stack([passed, passed.sqrt(), torch.arange(steps + 1).expand_as(passed)], dim=-1)
        place = place[torch.nn.functional.pad(mask, (1, 0), value=True)]
        return cls(
            lengths=torch.tensor([trace.length for trace in traces]).view(shape),
            correct=torch.tensor([bool(trace.correct) for trace in traces]).view(shape),
            step_ends=ends.view(*shape, -1),
            step_mask=mask.view(*shape, -1),
            states=torch.cat([torch.cat(states).double(), place.double()], dim=-1),
        )

    @property
    def state_mask(self) -> Tensor:
        """(G, N, K+1) bool, where a response has a state: before its first step, and after each."""
        return torch.nn.functional.pad(self.step_mask, (1, 0), value=True)

    @property
    def tokens_left(self) -> Tensor:
        """(G, N, K+1) float64, tokens that follow each state; 0 where there is none."""
        left = self.lengths.unsqueeze(-1) - torch.nn.functional.pad(self.step_ends + 1, (1, 0))
        return torch.where(self.state_mask, left, 0).double()


def step_costs(left: Tensor, predicted: Tensor, gae_lambda: float) -> Tensor:
    """The generalised advantage of length: delta_k = tokens of step k + V_k - V_{k-1}, a_k = delta_k + lambda a_{k+1}.

    Args:
        left: (..., K+1) tokens left at each state, 0 behind the last.
        predicted: (..., K+1) V, what was predicted to be left; 0 behind the last.
        gae_lambda: 1 gives the tokens that followed, less those predicted; 0 the step's own TD error.

    Returns:
        (..., K+1), of each step and, behind a response's last step, of its rest; above 0 for what took more tokens
        than it saved.
    """
    surprise = left - predicted  # delta_k is its fall, and its sum telescopes to the surprise at the step's start
    delta = surprise - torch.nn.functional.pad(surprise, (0, 1))[..., 1:]
    costs = torch.empty_like(delta)
    following = torch.zeros_like(delta[..., 0])
    for step in reversed(range(delta.shape[-1])):
        following = delta[..., step] + gae_lambda * following
        costs[..., step] = following
    return costs


def paying(batch: StateBatch, only_correct: bool, over_target: bool) -> Tensor:
    """(G, N) bool: the responses that pay for their length; `over_target`: only those longer than L_target."""
    pays = batch.correct if only_correct else torch.ones_like(batch.correct)
    if over_target:  # a group without a correct response has a target of NaN, which none exceeds
        pays = pays & (batch.lengths > target_lengths(batch.lengths, batch.correct).unsqueeze(-1))
    return pays


def length_advantages(batch: StateBatch, costs: Tensor, pays: Tensor, unit: float) -> Tensor:
    """The costs of those who pay in a unit of tokens, with the sign of an advantage.

    Args:
        batch: the responses.
        costs: (G, N, K+1) as `step_costs` returns them.
        pays: (G, N) bool.
        unit: the tokens that cost 1, such as `spread` or `mean_length` gives them; 0 if nothing is to be paid.

    Returns:
        (G, N, A) float64, 0 for those who do not pay.
    """
    used = batch.state_mask & pays.unsqueeze(-1)
    scaled = torch.where(used, costs / unit, 0.0) if unit else torch.zeros_like(costs)
    tokens = int(batch.lengths.max())
    # The state behind a response's last step stands for its rest: the padding behind that is the same.
    return -per_token(scaled, batch.step_ends, batch.step_mask, tokens)


def spread(batch: StateBatch, costs: Tensor, pays: Tensor, eps: float) -> float:
    """The deviation, over all steps of those who pay, of what they cost, plus eps; 0 if it is below eps."""
    paid = costs[batch.state_mask & pays.unsqueeze(-1)]
    deviation = float(paid.std()) if len(paid) > 1 else 0.0
    return deviation + eps if deviation > eps else 0.0


def mean_length(batch: StateBatch, pays: Tensor) -> float:
    """Mean tokens of those who pay; 0 if none does."""
    return float(batch.lengths[pays].double().mean()) if pays.any() else 0.0


def predict_tokens(traces: Sequence[StateTrace], problems: Sequence[int]) -> tuple[list[list[float]], float]:
    """Predict the tokens left at each state of saved responses, each by the responses to other problems.

    Args:
        traces: the responses.
        problems: the number of each one's problem, from 0.

    Returns:
        K+1 numbers for each response, and the share of the variance that they explain.

    Raises:
        ValueError: for step ends or states that do not fit their response.
        NonFiniteError: for a state that is not finite.
    """
    batch = StateBatch.from_traces([[trace] for trace in traces])
    mask = batch.state_mask
    found = StateCritic().predict(batch.states, batch.tokens_left[mask], torch.tensor(problems)[mask.nonzero()[:, 0]])
    rows = torch.split(found.values.clamp(min=0), mask.sum(-1).flatten().tolist())
    return [row.tolist() for row in rows], found.r2
