"""Continuations: a step's second generations, from prefixes of its responses, to be graded or to join the group."""

from dataclasses import dataclass, replace
from statistics import fmean

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout


@dataclass(frozen=True)
class ContinuationRequest:
    """A request for `wanted.count` generations."""

    row: int  # of the response in its group
    wanted: Continuation  # what the objective asked for, shortened to what fits the context
    prefix: Rollout  # the response's kept tokens, and the suffix


class Continuations:
    """What the responses of a step are continued with.

    Every response of a group gets `continued_tokens` in its metadata, and `probes` if its continuations were graded.
    In a group that continuations join, `kept` counts the tokens taken from the original response (all, for an
    original).
    """

    def __init__(self, objective: Objective, reader: StepReader, size: int, context: int) -> None:
        """Takes the objective, a reader of its responses, the size of a group, and the most tokens of a row."""
        self._objective, self._reader, self._size, self._context = objective, reader, size, context

    def requests(self, group: list[Rollout]) -> list[ContinuationRequest]:
        """What to generate from the responses to a prompt."""
        return [
            self._request(row, rollout, wanted)
            for row, rollout in enumerate(group)
            for wanted in self._objective.continuations(rollout, self._reader)
        ]

    def _request(self, row: int, rollout: Rollout, wanted: Continuation) -> ContinuationRequest:
        suffix = self._reader.ids(wanted.suffix)
        capacity = self._context - rollout.start - len(suffix)
        if capacity < 1:
            raise ConfigError(
                f"--data.max_len is {self._context}, which leaves no room for what "
                f"{self._objective.config.objective} adds to a prompt of {rollout.start} tokens: use at least "
                f"{self._context + 1 - capacity}"
            )
        kept = min(wanted.kept, len(rollout.response_ids), capacity - 1)
        fitted = replace(wanted, kept=kept, max_new_tokens=min(wanted.max_new_tokens, capacity - kept))
        return ContinuationRequest(row, fitted, replace(rollout, response_ids=[*rollout.response_ids[:kept], *suffix]))

    def complete(
        self, group: list[Rollout], requests: list[ContinuationRequest], results: list[list[Rollout]]
    ) -> list[Rollout]:
        """The group with the results of its requests, each from its prompt on.

        Raises:
            ConfigError: for an objective whose continuations do not fill the group.
        """
        pairs = list(zip(requests, results, strict=True))
        group = self._join(group, pairs) if self._objective.continues == "join" else self._grade(group, pairs)
        if len(group) != self._size:
            raise ConfigError(
                f"{self._objective.config.objective} filled a group with {len(group)} responses, but "
                f"--rollout.n_samples_per_prompt is {self._size}: its sampling and its continuations do not fit each "
                "other"
            )
        return group

    def _grade(self, group: list[Rollout], pairs: list[tuple[ContinuationRequest, list[Rollout]]]) -> list[Rollout]:
        probes: list[list[tuple[int, float]]] = [[] for _ in group]
        tokens = [0] * len(group)
        for request, rollouts in pairs:
            probes[request.row].append((request.wanted.kept, fmean(rollout.correct for rollout in rollouts)))
            tokens[request.row] += sum(_new_tokens(request, rollout) for rollout in rollouts)
        return [
            replace(rollout, probes=probes[row], metadata={**rollout.metadata, "continued_tokens": float(tokens[row])})
            for row, rollout in enumerate(group)
        ]

    def _join(self, group: list[Rollout], pairs: list[tuple[ContinuationRequest, list[Rollout]]]) -> list[Rollout]:
        originals = [(rollout, len(rollout.response_ids), 0) for rollout in group]
        joining = [
            (rollout, request.wanted.kept, _new_tokens(request, rollout))
            for request, rollouts in pairs
            for rollout in rollouts
        ]
        return [
            replace(rollout, metadata={"kept": float(kept), "continued_tokens": float(tokens)})
            for rollout, kept, tokens in originals + joining
        ]


def _new_tokens(request: ContinuationRequest, rollout: Rollout) -> int:
    return len(rollout.response_ids) - len(request.prefix.response_ids)
