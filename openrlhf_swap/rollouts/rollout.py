"""Responses on their way from the engine to the update, alone and in a batch."""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepCredit, step_credit
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.errors import DataError
from openrlhf_swap.rollouts.reader import ResponseReader


class Probe(NamedTuple):
    """A beginning of a response that was continued for grading."""

    kept: int  # its tokens
    share: float  # of correct answers among its continuations


@dataclass(frozen=True)
class Rollout:
    """A response, what it earned, and what the policy says about its steps.

    Attributes:
        prompt: the prompt as the chat template renders it.
        answer: the reference answer.
        response_ids: L tokens that the policy generated, the end token included; those of all turns
            of an agent.
        prompt_ids: the prompt's tokens, as the engine got them.
        reward: the grader's; ours are between 0 and 1.
        truncated: whether the token limit cut the response off.
        step_ends: e_1..e_K, indices in the response; empty where no signal is wanted.
        signals: what the policy gives for the steps by name (`algorithm.signals`): float tensors
            whose first dimension is K or K+1. Empty before they are read.
        logprobs: (L,) log-probabilities of the tokens under the policy, at the rollouts'
            temperature; None before the policy's forward, and where no pass reads them.
        probes: the beginnings that were continued for grading, in order.
        graded_correct: whether the grader called it correct; None if it gave a reward only.
        metadata: what the objective keeps from sampling to update.
        record: what else OpenRLHF's engine returned, for OpenRLHF's own row of the response.
        observations: (place, token ids) of what an environment wrote before `response_ids[place]`,
            in order. A new turn begins there.
        starts_over: whether each of `observations` is the whole context of the turn behind it, as
            `--agent.keep_thoughts last` makes it. Attention and positions then begin anew with it.
        turn_rewards: an environment's reward for each turn; empty where it is not known.
        closing: the places in `response_ids` of tokens that closed a thought at its budget. The
            policy did not choose these tokens, and is not trained on them.
        teacher_prompt_ids: the prompt behind which the reference model reads the response, for
            `--algo.kl.use_loss`; empty where that is `prompt_ids`.
    """

    prompt: str
    answer: str
    response_ids: Sequence[int]
    prompt_ids: Sequence[int]
    reward: float
    truncated: bool = False
    step_ends: Sequence[int] = ()
    signals: Mapping[str, Tensor] = field(default_factory=dict, compare=False, repr=False)
    logprobs: Tensor | None = field(default=None, compare=False, repr=False)
    probes: Sequence[Probe] = ()
    graded_correct: bool | None = None
    metadata: Mapping[str, float] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    observations: Sequence[tuple[int, Sequence[int]]] = ()
    starts_over: bool = False
    turn_rewards: Sequence[float] = ()
    closing: Sequence[int] = ()
    teacher_prompt_ids: Sequence[int] = ()

    @property
    def start(self) -> int:
        """Position of the response's first token in its row."""
        return len(self.prompt_ids)

    @property
    def correct(self) -> bool:
        """c: what the grader says. Of a grader that gives a reward only, whether it is positive."""
        if self.graded_correct is None:
            return self.reward > 0
        return self.graded_correct

    @property
    def answer_logprobs(self) -> list[float]:
        """l_0..l_K in nats per answer token; empty before they are scored."""
        signal = self.signals.get("answer_logprobs", ())
        scores: list[float] = torch.as_tensor(signal).tolist()
        return scores

    def with_signals(self, **signals: Any) -> "Rollout":
        """A copy with further signals: tensors or lists whose first dimension is K or K+1."""
        added = dict(self.signals)
        for name, values in signals.items():
            known = isinstance(values, Tensor)
            added[name] = values if known else torch.tensor(values, dtype=torch.float64)
        return replace(self, signals=added)

    @property
    def turn_starts(self) -> list[int]:
        """The places in `response_ids` where turns but the first begin."""
        return [place for place, _ in self.observations]

    @property
    def turns(self) -> list[Sequence[int]]:
        """The generated tokens of each turn."""
        bounds = pairwise([0, *self.turn_starts, len(self.response_ids)])
        return [self.response_ids[begin:end] for begin, end in bounds]

    def rewards_by_step(self) -> Tensor:
        """(K,) float64: the last step of a turn has the turn's reward, the others have 0.

        A turn without a step leaves its reward to the step before it. Raises DataError where the
        rewards of the turns are not known.
        """
        turn_ends = [*self.turn_starts, len(self.response_ids)]
        if len(self.turn_rewards) != len(turn_ends):
            raise DataError(
                "the agent of --train.agent_func_path gives no reward for each turn, which "
                "--swap.turn_weight wants: make its AgentExecutor a MultiTurnAgentExecutor whose "
                "`execute` returns what that of OpenRLHF does"
            )
        rewards = torch.zeros(len(self.step_ends), dtype=torch.float64)
        for end, reward in zip(turn_ends, self.turn_rewards, strict=True):
            steps = bisect_left(self.step_ends, end)
            if steps:
                rewards[steps - 1] += reward
        return rewards

    @property
    def row_ids(self) -> list[int]:
        """Token ids of the whole row: the prompt, then turns and observations in turn."""
        ids = list(self.prompt_ids)
        observed = [observation for _, observation in self.observations]
        for turn, observation in zip_longest(self.turns, observed, fillvalue=()):
            ids += [*turn, *observation]
        return ids

    @cached_property
    def positions(self) -> Tensor:
        """(L,) int64: where each generated token stands in the row."""
        advances = torch.ones(len(self.response_ids) + 1, dtype=torch.int64)
        for place, ids in self.observations:
            advances[place] += len(ids)
        return self.start - 1 + advances.cumsum(0)[:-1]

    @property
    def context_starts(self) -> list[int]:
        """The positions in the row where contexts begin; one context if it does not start over."""
        starts = [0]
        if self.starts_over:
            for place, context in self.observations:
                end = int(self.positions[place])
                starts.append(end - len(context))
        return starts

    @property
    def generated_ends(self) -> tuple[int, ...]:
        """(K) positions in the row of each step's last generated token."""
        return tuple(self.positions[list(self.step_ends)].tolist())

    @property
    def prefix_ends(self) -> tuple[int, ...]:
        """(K+1) positions in the row: the prompt's last token, then the last token of each step.

        Where a step ends with an observation, that is the observation's last token.
        """
        observed = Counter[int]()
        for place, ids in self.observations:
            observed[place - 1] += len(ids)
        ends = zip(self.generated_ends, self.step_ends, strict=True)
        return (self.start - 1, *(position + observed[end] for position, end in ends))

    def trace(self) -> StepTrace:
        """The input of the step arithmetic; it has no steps before signals are read."""
        others = dict(self.signals)
        others.pop("answer_logprobs", None)
        ends = self.step_ends if self.signals else ()
        return StepTrace(len(self.response_ids), self.correct, self.answer_logprobs, ends, others)


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
        """(G, N) bool, whether the thought was closed; True for a model without marks."""
        return self.each(lambda rollout: self.reader.is_closed(rollout.response_ids)).bool()

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return self.each(lambda rollout: len(rollout.response_ids)).long()

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; no steps for an objective that wants no signals."""
        traces = [[rollout.trace() for rollout in group] for group in self.groups]
        return StepBatch.from_traces(traces)

    @cached_property
    def credit(self) -> StepCredit:
        """The gains, penalties and rewards of the steps."""
        return step_credit(self.steps, self.coefficients)

    def each_text(self, function: Callable[[str], float]) -> Tensor:
        """Apply a function to the text of every response; (G, N) float64."""
        return self.each(lambda rollout: function(self.reader.text(rollout.response_ids)))

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """Apply a function to every rollout; (G, N) float64."""
        values = [[function(rollout) for rollout in group] for group in self.groups]
        return torch.tensor(values, dtype=torch.float64)


def prompt_key(prompt: str) -> str:
    """The key of a rendered prompt in files and checkpoints."""
    return hashlib.sha256(prompt.encode()).hexdigest()
