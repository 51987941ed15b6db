"""What an objective generates from the complete responses of a group."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

from vllm import SamplingParams

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.driver.engines import Drawn, DrawnGroup, Engines
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.objectives.base import Continuation, Objective
from openrlhf_swap.rollouts.rollout import Rollout, StepReader
from openrlhf_swap.runs.metrics import Metrics

Wanted = list[tuple[int, Continuation]]
"""The continuations of a group, each with the number of the response that it continues."""


class Continuations:
    """Continues the responses of each group as the objective wants.

    In a response's metadata, `continued_tokens` counts the tokens of its continuations. A
    continuation that joins the group has its own, and `kept`, the tokens that it took from the
    original response; an original has kept all.
    """

    def __init__(
        self,
        args: SimpleNamespace,
        objective: Objective,
        reader: StepReader,
        engines: Engines,
    ) -> None:
        self._args = args
        self._objective = objective
        self._reader = reader
        self._engines = engines

    def continued(self, drawn: Iterator[DrawnGroup], metrics: Metrics) -> Iterator[DrawnGroup]:
        """Yield the groups with their continuations: joined to them, or counted in `probes`."""
        waiting = []
        asked = []
        for number, group in drawn:
            wanted = self._wanted(group)
            if not wanted:
                yield number, self._added(group, [], [])
                continue
            requests = [self._request(each, group[row].rollout) for row, each in wanted]
            waiting.append((number, group, wanted))
            asked.append([self._engines.ask_one(number, requests)])
        started = time.monotonic()
        for place, (answers,) in self._engines.answered(asked):
            number, group, wanted = waiting[place]
            yield number, self._added(group, wanted, answers)
        seconds = time.monotonic() - started
        metrics["timing/continuations"] = metrics.get("timing/continuations", 0.0) + seconds

    def _wanted(self, group: Sequence[Drawn]) -> Wanted:
        wanted = []
        for row, each in enumerate(group):
            for continuation in self._objective.continuations(each.rollout, self._reader):
                wanted.append((row, self._fit(continuation, each.rollout)))
        return wanted

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

    def _added(
        self,
        group: list[Drawn],
        wanted: Wanted,
        answers: Sequence[list[Rollout]],
    ) -> list[Drawn]:
        """The group with the answers to what was wanted of it."""
        if self._objective.continues == "join":
            whole = self._joined(group, wanted, answers)
        else:
            whole = self._probed(group, wanted, answers)
        size = self._args.rollout.n_samples_per_prompt
        if len(whole) != size:
            raise ConfigError(
                f"{self._objective.config.objective} filled a group with {len(whole)} responses, "
                f"but --rollout.n_samples_per_prompt is {size}: its sampling and its continuations "
                "do not fit each other"
            )
        return whole

    def _joined(
        self,
        group: list[Drawn],
        wanted: Wanted,
        answers: Sequence[list[Rollout]],
    ) -> list[Drawn]:
        """The responses, and behind them their continuations."""
        whole = []
        for each in group:
            kept = float(len(each.rollout.response_ids))
            whole.append(_described(each, kept=kept, continued_tokens=0.0))
        for (row, continuation), rollouts in zip(wanted, answers, strict=True):
            kept = float(continuation.kept)
            for rollout in rollouts:
                tokens = self._new_tokens(continuation, rollout)
                joining = Drawn(group[row].part, rollout)
                whole.append(_described(joining, kept=kept, continued_tokens=tokens))
        return whole

    def _probed(
        self,
        group: list[Drawn],
        wanted: Wanted,
        answers: Sequence[list[Rollout]],
    ) -> list[Drawn]:
        """The responses, each with the share of correct continuations after so many tokens."""
        probes: list[list[tuple[int, float]]] = [[] for _ in group]
        tokens = [0.0] * len(group)
        for (row, continuation), rollouts in zip(wanted, answers, strict=True):
            share = fmean(rollout.correct for rollout in rollouts)
            probes[row].append((continuation.kept, share))
            tokens[row] += sum(self._new_tokens(continuation, rollout) for rollout in rollouts)
        whole = []
        for each, found, count in zip(group, probes, tokens, strict=True):
            probed = replace(each, rollout=replace(each.rollout, probes=found))
            whole.append(_described(probed, continued_tokens=count))
        return whole

    def _new_tokens(self, continuation: Continuation, rollout: Rollout) -> float:
        begun = continuation.kept + len(self._reader.ids(continuation.suffix))
        return float(len(rollout.response_ids) - begun)


def _described(drawn: Drawn, **numbers: float) -> Drawn:
    """The response with these numbers in its metadata."""
    metadata = {**drawn.rollout.metadata, **numbers}
    return replace(drawn, rollout=replace(drawn.rollout, metadata=metadata))
