"""Continuations of beginnings of the responses of a group, which grade the beginnings."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from types import SimpleNamespace

from vllm import SamplingParams

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.driver.engines import DrawnGroup, Engines
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Probe, Rollout
from openrlhf_swap.runs.metrics import Metrics


@dataclass(frozen=True)
class _Waiting:
    """A group, and the continuations that are wanted of each response."""

    group: DrawnGroup
    wanted: Sequence[Sequence[Continuation]]


class Continuations:
    """Continues beginnings of the responses of each group, as the objective wants.

    `Rollout.probes` gets the share of correct continuations of each beginning, and the response's
    metadata `continued_tokens`, the number of tokens that were generated for it.
    """

    def __init__(
        self, args: SimpleNamespace, objective: Objective, reader: StepReader, engines: Engines
    ) -> None:
        self._args = args
        self._objective = objective
        self._reader = reader
        self._engines = engines

    def continued(self, drawn: Iterator[DrawnGroup], metrics: Metrics) -> Iterator[DrawnGroup]:
        """Yield the groups with their probes; the seconds are added to the metrics."""
        waiting = []
        asked = []
        for group in drawn:
            wanted = [self._wanted(each.rollout) for each in group.responses]
            one = _Waiting(group, wanted)
            if not any(wanted):
                yield self._probed(one, [])
                continue
            requests = []
            for each, of_response in zip(group.responses, wanted, strict=True):
                for continuation in of_response:
                    requests.append(self._request(continuation, each.rollout))
            waiting.append(one)
            asked.append([self._engines.ask_one(group.number, requests)])
        started = time.monotonic()
        for place, (answers,) in self._engines.answered(asked):
            yield self._probed(waiting[place], answers)
        seconds = time.monotonic() - started
        metrics["timing/continuations"] = metrics.get("timing/continuations", 0.0) + seconds

    def _wanted(self, rollout: Rollout) -> list[Continuation]:
        wanted = self._objective.continuations(rollout, self._reader)
        return [self._fit(one, rollout) for one in wanted]

    def _fit(self, wanted: Continuation, rollout: Rollout) -> Continuation:
        """Shorten a continuation to what fits the context."""
        context = self._args.data.max_len
        capacity = context - rollout.start - len(self._reader.ids(wanted.suffix))
        if capacity < 1:
            raise ConfigError(
                f"--data.max_len is {context}, which leaves no room for what "
                f"{self._objective.config.objective} adds to a prompt of {rollout.start} tokens: "
                f"use at least {context + 1 - capacity}"
            )
        kept = min(wanted.kept, len(rollout.response_ids), capacity - 1)
        new_tokens = min(wanted.max_new_tokens, capacity - kept)
        return replace(wanted, kept=kept, max_new_tokens=new_tokens)

    def _request(self, wanted: Continuation, rollout: Rollout) -> EngineRequest:
        settings = self._args.rollout
        ids = [*rollout.response_ids[: wanted.kept], *self._reader.ids(wanted.suffix)]
        return EngineRequest(
            prompt=rollout.prompt,
            label=rollout.record["label"],
            count=wanted.count,
            sampling=SamplingParams(
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_tokens=wanted.max_new_tokens,
            ),
            seed=self._engines.seed(self._objective.step),
            prefix=replace(rollout, response_ids=ids),
        )

    def _probed(self, waiting: _Waiting, answers: Sequence[Sequence[Rollout]]) -> DrawnGroup:
        """The group with its probes, from the answers to all of its continuations in turn."""
        remaining = iter(answers)
        probed = []
        for each, of_response in zip(waiting.group.responses, waiting.wanted, strict=True):
            probes = []
            tokens = 0
            for continuation in of_response:
                rollouts = next(remaining)
                share = fmean(rollout.correct for rollout in rollouts)
                probes.append(Probe(continuation.kept, share))
                begun = continuation.kept + len(self._reader.ids(continuation.suffix))
                tokens += sum(len(rollout.response_ids) - begun for rollout in rollouts)
            metadata = {**each.rollout.metadata, "continued_tokens": float(tokens)}
            rollout = replace(each.rollout, probes=probes, metadata=metadata)
            probed.append(replace(each, rollout=rollout))
        return replace(waiting.group, responses=probed)
