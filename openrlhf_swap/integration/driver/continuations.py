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
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.metrics import Metrics


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
            wanted = [self._wanted(each.rollout) for each in group]
            if not any(wanted):
                yield number, self._added(group, wanted, [])
                continue
            requests = []
            for each, of_response in zip(group, wanted, strict=True):
                requests += [self._request(one, each.rollout) for one in of_response]
            waiting.append((number, group, wanted))
            asked.append([self._engines.ask_one(number, requests)])
        started = time.monotonic()
        for place, (answers,) in self._engines.answered(asked):
            number, group, wanted = waiting[place]
            yield number, self._added(group, wanted, answers)
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

    def _added(
        self,
        group: Sequence[Drawn],
        wanted: Sequence[Sequence[Continuation]],
        answers: Sequence[Sequence[Rollout]],
    ) -> list[Drawn]:
        """The group with its continuations: behind it, or as shares of correct ones in `probes`.

        `wanted` are those of each response, `answers` of each of them in turn.
        """
        joins = self._objective.continues == "join"
        remaining = iter(answers)
        originals = []
        joining = []
        for each, of_response in zip(group, wanted, strict=True):
            probes = []
            tokens = 0.0
            for continuation in of_response:
                rollouts = next(remaining)
                begun = continuation.kept + len(self._reader.ids(continuation.suffix))
                new = [float(len(rollout.response_ids) - begun) for rollout in rollouts]
                if not joins:
                    share = fmean(rollout.correct for rollout in rollouts)
                    probes.append((continuation.kept, share))
                    tokens += sum(new)
                    continue
                for rollout, count in zip(rollouts, new, strict=True):
                    metadata = {"kept": float(continuation.kept), "continued_tokens": count}
                    joining.append(Drawn(each.part, replace(rollout, metadata=metadata)))
            metadata = {**each.rollout.metadata, "continued_tokens": tokens}
            if joins:
                metadata["kept"] = float(len(each.rollout.response_ids))
            rollout = replace(each.rollout, probes=probes, metadata=metadata)
            originals.append(replace(each, rollout=rollout))
        whole = originals + joining
        size = self._args.rollout.n_samples_per_prompt
        if len(whole) != size:
            raise ConfigError(
                f"{self._objective.config.objective} filled a group with {len(whole)} responses, "
                f"but --rollout.n_samples_per_prompt is {size}: its sampling and its continuations "
                "do not fit each other"
            )
        return whole
