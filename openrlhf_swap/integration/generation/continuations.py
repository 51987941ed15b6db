"""Continuations: a step's second generations, from prefixes of its responses, to be graded or to join the group.

They are requested as soon as a prompt's responses are complete, while other prompts are still generating. Nothing
outlives the step.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.generation.response import EngineResponse, action_range, rollout_of
from openrlhf_swap.integration.generation.rollout_actor import TokenRequest
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.objectives.contract import continuations_of
from openrlhf_swap.rollouts.reader import StepReader


class Continuations:
    """What the responses of a step are continued with.

    A continued response gets `continued_tokens` and, if its continuations were graded, `probes`. In a group that
    continuations join, `metadata["kept"]` counts the tokens taken from the original response (all, for an original).
    """

    def __init__(self, objective: Objective, reader: StepReader, args: SimpleNamespace) -> None:
        """Takes the objective, a reader of its responses, and OpenRLHF's arguments."""
        self._objective, self._reader, self._args = objective, reader, args
        self._asked: dict[int, list[tuple[int, Continuation]]] = {}
        self.groups: dict[int, list[EngineResponse]] = {}

    def requests(self, number: int, responses: list[EngineResponse]) -> list[TokenRequest]:
        """The requests to send to an engine for the responses to the step's `number`-th prompt."""
        self.groups[number] = responses
        wanted = [
            (row, self._fitted(response, continuation))
            for row, response in enumerate(responses)
            for continuation in continuations_of(self._objective, rollout_of(response), self._reader)
        ]
        self._asked[number] = wanted
        return [
            TokenRequest(responses[row]["prompt"], self._ids(responses[row], c), c.max_new_tokens, c.count)
            for row, c in wanted
        ]

    def put(self, number: int, results: list[list[EngineResponse]]) -> None:
        """Add an engine's results for `requests`; afterwards `groups` holds the whole group."""
        size = self._args.rollout.n_samples_per_prompt
        add = self._joined if self._objective.continues == "join" else self._graded
        group = add(self.groups[number], list(zip(self._asked[number], results, strict=True)))
        if len(group) != size:
            name = self._objective.config.objective
            raise ConfigError(
                f"{name} filled a group with {len(group)} responses, but --rollout.n_samples_per_prompt is {size}: "
                "its sampling and its continuations do not fit each other"
            )
        self.groups[number] = group

    def _graded(self, responses: list[EngineResponse], results: list[Any]) -> list[EngineResponse]:
        group: list[EngineResponse] = [{**response, "probes": [], "continued_tokens": 0} for response in responses]
        for (row, continuation), found in results:
            group[row]["probes"].append((continuation.kept, fmean(rollout_of(one).correct for one in found)))
            group[row]["continued_tokens"] += sum(len(one["observation_tokens"]) for one in found)
        return group

    def _joined(self, responses: list[EngineResponse], results: list[Any]) -> list[EngineResponse]:
        group: list[EngineResponse] = []
        for response in responses:
            start, end = action_range(response)
            group.append({**response, "metadata": {"kept": float(end - start)}})
        for (row, continuation), found in results:
            group += [self._whole(responses[row], continuation, one) for one in found]
        return group

    def _whole(self, response: EngineResponse, continuation: Continuation, found: EngineResponse) -> EngineResponse:
        """Prefix and continuation as one response."""
        ids = self._ids(response, continuation) + found["observation_tokens"]
        return {
            **found,
            "observation_tokens": ids,
            "action_ranges": [(action_range(response)[0], len(ids))],
            "metadata": {"kept": float(continuation.kept)},
            "continued_tokens": len(found["observation_tokens"]),
        }

    def _ids(self, response: EngineResponse, continuation: Continuation) -> list[int]:
        """Token ids of the prompt, the kept part of the response, and the suffix."""
        end_of_kept = action_range(response)[0] + continuation.kept
        return [*response["observation_tokens"][:end_of_kept], *self._reader.ids(continuation.suffix)]

    def _fitted(self, response: EngineResponse, continuation: Continuation) -> Continuation:
        """The continuation, shortened to what fits the context."""
        start, end = action_range(response)
        longest = self._args.data.max_len
        capacity = longest - start - len(self._reader.ids(continuation.suffix))
        if capacity < 1:
            raise ConfigError(
                f"--data.max_len is {longest}, which leaves no room for what {self._objective.config.objective} puts "
                f"behind a prompt of {start} tokens: use at least {longest + 1 - capacity}"
            )
        kept = min(continuation.kept, end - start, capacity - 1)
        return replace(continuation, kept=kept, max_new_tokens=min(continuation.max_new_tokens, capacity - kept))
