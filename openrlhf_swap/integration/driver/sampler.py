"""Prompts to groups of rollouts, with continuations, edits and the filter.

A prompt's group is asked for in parts, as the objective wants them. A part stays beside its
responses until these are finished rollouts, so that nothing has to be looked up by a text.
"""

import itertools
import math
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import ray
from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from tqdm import tqdm
from vllm import SamplingParams

from openrlhf_swap.errors import CompatibilityError, ConfigError, DataError, RunError
from openrlhf_swap.integration.driver.best import States
from openrlhf_swap.integration.driver.rows import check_names, experience_row, fit_context
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest
from openrlhf_swap.rollouts.rollout import Batch, Rollout, StepReader
from openrlhf_swap.runs.metrics import Metrics


@dataclass(frozen=True)
class Prompt:
    """A row of a data set: the text, as the chat template renders it, and the reference answer."""

    text: str
    label: str


@dataclass(frozen=True)
class Part:
    """The number of a part in its group, and what the objective asked for."""

    number: int
    request: SamplingRequest


@dataclass(frozen=True)
class Drawn:
    """A response as the engine returned it, with the part of the group that it was drawn for."""

    part: Part
    rollout: Rollout


DrawnGroup = tuple[int, list[Drawn]]
"""The number of a prompt, and the responses to it."""
Groups = list[list[Rollout]]


@dataclass(frozen=True)
class SampledBatch:
    """The groups of one training step, and what has to be known of how they were sampled.

    Attributes:
        groups: `rollout.batch_size` groups of `rollout.n_samples_per_prompt` finished rollouts.
        position: where the next batch begins, by OpenRLHF's names; a checkpoint keeps it.
        objective_step: the batches sampled so far, this one included.
        objective_state: the objective's state when the batch was sampled.
        updates: how often the engines' weights had been replaced when the sampling began.
        metrics: numbers about the sampling.
    """

    groups: Groups
    position: States
    objective_step: int
    objective_state: States
    updates: int
    metrics: Metrics


class Sampler:
    """Samples the batches of a run one after the other, and its evaluations."""

    def __init__(
        self,
        args: SimpleNamespace,
        prompts: Any,
        evaluation_prompts: Any,
        engines: Sequence[Any],
        objective: Objective,
        reader: StepReader,
    ) -> None:
        """Take OpenRLHF's arguments, data loaders (None for no evaluation) and engines."""
        self._args = args
        self._prompts = prompts
        self._evaluation_prompts = evaluation_prompts
        self._engines = engines
        self._objective = objective
        self._reader = reader
        self._filters = args.algo.dynamic_filtering_enable
        self.updates = 0  # how often `replacing_weights` was left without an error

    def batches(self, position: States) -> Iterator[SampledBatch]:
        """Sample until the last step or the last episode ends, from a position in the data."""
        consumed = position["total_consumed_prompts"]
        if position["data_loader_state_dict"]:
            self._prompts.load_state_dict(position["data_loader_state_dict"])
        last_step = self._args.swap_run.training_steps
        for episode in self._episodes(position["episode"]):
            step_before = self._objective.step
            prompts = _rows(self._prompts)
            while not last_step or self._objective.step < last_step:
                updates = self.updates
                groups, taken, metrics = self._sample_batch(prompts)
                if not groups:
                    break
                consumed += taken
                self._objective.step += 1
                yield SampledBatch(
                    groups=groups,
                    position={
                        "episode": episode,
                        "total_consumed_prompts": consumed,
                        "data_loader_state_dict": self._prompts.state_dict(),
                    },
                    objective_step=self._objective.step,
                    objective_state=self._objective.state_dict(),
                    updates=updates,
                    metrics=metrics,
                )
            if self._filters and not self._objective.step:
                low, high = self._args.algo.dynamic_filtering_range
                raise DataError(
                    f"--algo.dynamic_filtering_enable: in a whole episode fewer than "
                    f"{self._args.rollout.batch_size} prompts had a mean score between {low:g} and "
                    f"{high:g}: take problems that are neither too easy nor too hard, or leave the "
                    "filter out"
                )
            # What a checkpoint left of its pass may give no step; a whole pass that gives none is
            # the end, as the last step is.
            is_empty = self._objective.step == step_before and episode > position["episode"]
            if last_step and (is_empty or self._objective.step == last_step):
                return

    def _episodes(self, first: int) -> Iterable[int]:
        """The numbers of the passes over the data; without an end if the steps are counted."""
        if self._args.swap_run.training_steps:
            return itertools.count(first)
        return range(first, self._args.train.num_episodes)

    def evaluate(self, step: int) -> Metrics:
        """Sample the evaluation's prompts after a step; the metrics have OpenRLHF's names."""
        count = self._args.eval.n_samples_per_prompt
        context = self._args.data.max_len
        prompts = list(_rows(self._evaluation_prompts))
        limit = self._args.rollout.max_new_tokens
        parts = []
        for prompt in prompts:
            text = self._objective.eval_prompt(prompt.text)
            parts.append([Part(0, SamplingRequest(text, count, limit))])
        with self._awake():
            drawn = dict(self._draw(prompts, parts, self._args.eval.temperature, step))
        rows = []
        for number, prompt in enumerate(prompts):
            for each in drawn[number]:
                # OpenRLHF looks the data source up by the prompt, and counts rewards: a share of
                # passed tests is not a correct response.
                rollout = replace(each.rollout, prompt=prompt.text)
                if rollout.graded_correct is not None:
                    rollout = replace(rollout, reward=float(rollout.graded_correct))
                rows.append(experience_row(fit_context(rollout, context), context))
        metrics: Metrics = compute_eval_metrics(self._evaluation_prompts, rows, count)
        return metrics

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Keep engines from sampling while the block replaces their weights, and count that."""
        yield
        self.updates += 1

    def stop(self) -> None:
        """End what runs beside the training, because the training ends with an error."""

    def _sample_batch(self, prompts: Iterator[Prompt]) -> tuple[Groups, int, Metrics]:
        """Return the groups of a step, how many prompts they took, and numbers about them.

        There are no groups when the prompts that are left do not fill a batch. A step that is
        repeated draws the same prompts: as many again as the filter dropped.
        """
        size = self._args.rollout.batch_size
        groups: Groups = []
        metrics: Metrics = {}
        consumed = 0
        with self._awake():
            while len(groups) < size:
                wanted = size - len(groups)
                rows = list(islice(prompts, wanted))
                if len(rows) < wanted:
                    _tell_left_over(len(groups) + len(rows))
                    return [], consumed, metrics
                if not consumed:
                    self._monitor()
                consumed += wanted
                sampled = self._sample_groups(rows, metrics)
                groups += filter(self._passes, sampled) if self._filters else sampled
        rollouts = list(chain.from_iterable(groups))
        check_names(rollouts)
        if self._filters:
            metrics["dynamic_filtering_pass_rate"] = size / consumed * 100
        if self._objective.continues != "no":
            metrics["swap/continued_tokens"] = fmean(
                rollout.metadata["continued_tokens"] for rollout in rollouts
            )
        return groups, consumed, metrics

    def _passes(self, group: list[Rollout]) -> bool:
        """Whether the group's mean score, as the objective counts, lies inside the filter's range.

        The range's ends do not belong to it.
        """
        low, high = self._args.algo.dynamic_filtering_range
        scored = [replace(rollout, reward=rollout.record["scores"]) for rollout in group]
        mean = self._objective.filter_scores(self._batch([scored])).mean()
        return bool(low < mean < high)

    def _batch(self, groups: Groups) -> Batch:
        return Batch(groups, self._objective.coefficients, self._reader)

    def _monitor(self) -> None:
        """Show the objective the monitoring set that it asks for before this step, if it does."""
        wanted = self._objective.monitor()
        if wanted is None:
            return
        most, count = wanted
        data = self._prompts.dataset
        chosen = random.Random(self._args.train.seed).sample(range(len(data)), min(most, len(data)))
        prompts = [Prompt(*data[index][1:3]) for index in chosen]
        parts = [self._parts(prompt, count) for prompt in prompts]
        drawn = dict(self._draw_for_training(prompts, parts))
        groups = [[each.rollout for each in drawn[number]] for number in range(len(prompts))]
        self._objective.observe_monitor(self._batch(groups))

    def _sample_groups(self, prompts: Sequence[Prompt], metrics: Metrics) -> Groups:
        """Sample a finished group for each prompt."""
        parts = [self._parts(prompt, self._args.rollout.n_samples_per_prompt) for prompt in prompts]
        drawn = self._draw_for_training(prompts, parts)
        if self._objective.continues != "no":
            drawn = self._continue_groups(prompts, drawn, metrics)
        groups = {
            number: [self.finish(each) for each in group]
            for number, group in tqdm(drawn, desc="Generate samples", total=len(prompts))
        }
        return [groups[number] for number in range(len(prompts))]

    def _parts(self, prompt: Prompt, count: int) -> list[Part]:
        limit = self._args.rollout.max_new_tokens
        requests = self._objective.sampling(prompt.text, count, limit)
        return [Part(number, request) for number, request in enumerate(requests)]

    def _draw_for_training(
        self, prompts: Sequence[Prompt], parts: Sequence[Sequence[Part]]
    ) -> Iterator[DrawnGroup]:
        temperature = self._args.rollout.temperature
        return self._draw(prompts, parts, temperature, self._objective.step)

    def _draw(
        self,
        prompts: Sequence[Prompt],
        parts: Sequence[Sequence[Part]],
        temperature: float,
        step: int,
    ) -> Iterator[DrawnGroup]:
        """Yield a prompt's number and the responses of all of its parts, as soon as they are there.

        An engine gets the next part when it has the fewest responses to generate.
        """
        loads = [0] * len(self._engines)
        asked = []
        for prompt, wanted in zip(prompts, parts, strict=True):
            refs = []
            for part in wanted:
                request = EngineRequest(
                    prompt=part.request.prompt + part.request.forced,
                    label=prompt.label,
                    count=part.request.count,
                    sampling=self._sampling(temperature, self._new_tokens(prompt, part.request)),
                    seed=self._seed(step),
                )
                engine = loads.index(min(loads))
                loads[engine] += request.count
                refs.append(self._engines[engine].respond.remote(request))
            asked.append(refs)
        for number, answers in self._answered(asked):
            drawn = []
            for part, (group,) in zip(parts[number], answers, strict=True):
                drawn += [Drawn(part, rollout) for rollout in group]
            yield number, drawn

    def _new_tokens(self, prompt: Prompt, request: SamplingRequest) -> int:
        """The tokens that a response may have after what is forced on it."""
        tokens = request.max_new_tokens - len(self._reader.ids(request.forced))
        if request.prompt == prompt.text:  # it fits, as was seen before the run
            return tokens
        begun = len(self._reader.ids(request.prompt + request.forced))
        return max(1, min(tokens, self._args.data.max_len - begun))

    def _sampling(self, temperature: float, new_tokens: int) -> SamplingParams:
        corrects = self._args.algo.advantage.is_correction_level != "off"
        return SamplingParams(
            temperature=temperature,
            top_p=self._args.rollout.top_p,
            max_tokens=new_tokens,
            min_tokens=1,
            skip_special_tokens=False,
            logprobs=1 if corrects else None,
        )

    def _seed(self, step: int) -> str | None:
        """What makes the responses of a step reproducible, if they are to be."""
        train = self._args.train
        return f"{train.seed}:{step}" if train.full_determinism_enable else None

    def _answered(self, asked: Sequence[Sequence[Any]]) -> Iterator[tuple[int, list[Any]]]:
        """Yield the place of each list of references and their values, when all are there."""
        limit = self._args.swap_run.generation_timeout
        place_of: dict[Any, int] = {}
        for place, refs in enumerate(asked):
            place_of |= dict.fromkeys(refs, place)
        missing = [len(refs) for refs in asked]
        pending = list(place_of)
        while pending:
            ready, pending = ray.wait(pending, timeout=None if math.isinf(limit) else limit)
            if not ready:
                left = sum(count > 0 for count in missing)
                raise RunError(
                    f"no prompt was finished within --swap.generation_timeout {limit:g} seconds, "
                    f"{left} of {len(asked)} are open: a rollout engine or its grader is stuck. "
                    "Start again with --ckpt.load_enable; give more time if the engines were still "
                    "at work"
                )
            place = place_of[ready[0]]
            missing[place] -= 1
            if not missing[place]:
                yield place, ray.get(list(asked[place]))

    def _continue_groups(
        self,
        prompts: Sequence[Prompt],
        drawn: Iterator[DrawnGroup],
        metrics: Metrics,
    ) -> Iterator[DrawnGroup]:
        """Yield the groups with what the objective generates from their complete responses."""
        waiting = []
        asked = []
        for number, group in drawn:
            wanted = []
            requests = []
            for row, each in enumerate(group):
                for continuation in self._objective.continuations(each.rollout, self._reader):
                    fitted = self._fit(continuation, each.rollout)
                    wanted.append((row, fitted))
                    requests.append(self._continuation_request(fitted, each.rollout))
            if not wanted:
                yield number, self._with_continuations(group, [], [])
                continue
            # One engine gets all of a prompt, and keeps its beginnings in the cache.
            engine = self._engines[number % len(self._engines)]
            waiting.append((number, group, wanted))
            asked.append([engine.respond.remote(*requests)])
        started = time.monotonic()
        for place, (answers,) in self._answered(asked):
            number, group, wanted = waiting[place]
            yield number, self._with_continuations(group, wanted, answers)
        seconds = time.monotonic() - started
        metrics["timing/continuations"] = metrics.get("timing/continuations", 0.0) + seconds

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

    def _continuation_request(self, wanted: Continuation, rollout: Rollout) -> EngineRequest:
        rollout_settings = self._args.rollout
        ids = [*rollout.response_ids[: wanted.kept], *self._reader.ids(wanted.suffix)]
        return EngineRequest(
            prompt=rollout.prompt,
            label=rollout.record["label"],
            count=wanted.count,
            sampling=SamplingParams(
                temperature=rollout_settings.temperature,
                top_p=rollout_settings.top_p,
                max_tokens=wanted.max_new_tokens,
            ),
            seed=self._seed(self._objective.step),
            prefix=replace(rollout, response_ids=ids),
        )

    def _with_continuations(
        self,
        group: list[Drawn],
        wanted: Sequence[tuple[int, Continuation]],
        answers: Sequence[list[Rollout]],
    ) -> list[Drawn]:
        """Return the group with its continuations: joined to it, or counted in `probes`.

        In a response's metadata, `continued_tokens` counts the tokens of its continuations. A
        continuation that joins has its own, and `kept`, the tokens that it took from the original
        response; an original has kept all.
        """
        joins = self._objective.continues == "join"
        joining: list[Drawn] = []
        probes: list[list[tuple[int, float]]] = [[] for _ in group]
        tokens = [0.0] * len(group)
        for (row, continuation), rollouts in zip(wanted, answers, strict=True):
            begun = continuation.kept + len(self._reader.ids(continuation.suffix))
            new = [float(len(rollout.response_ids) - begun) for rollout in rollouts]
            if not joins:
                share = fmean(rollout.correct for rollout in rollouts)
                probes[row].append((continuation.kept, share))
                tokens[row] += sum(new)
                continue
            for rollout, count in zip(rollouts, new, strict=True):
                metadata = {"kept": float(continuation.kept), "continued_tokens": count}
                joining.append(Drawn(group[row].part, replace(rollout, metadata=metadata)))
        originals = []
        for row, each in enumerate(group):
            metadata = {**each.rollout.metadata, "continued_tokens": tokens[row]}
            if joins:
                metadata["kept"] = float(len(each.rollout.response_ids))
            rollout = replace(each.rollout, probes=probes[row], metadata=metadata)
            originals.append(replace(each, rollout=rollout))
        size = self._args.rollout.n_samples_per_prompt
        whole = originals + joining
        if len(whole) != size:
            raise ConfigError(
                f"{self._objective.config.objective} filled a group with {len(whole)} responses, "
                f"but --rollout.n_samples_per_prompt is {size}: its sampling and its continuations "
                "do not fit each other"
            )
        return whole

    def finish(self, drawn: Drawn) -> Rollout:
        """Make the rollout to train on: with what was forced on it, edited, within the context.

        Its metadata has the number of its part; where the objective gave the part a chance, also
        the chance and whether its beginning was forced.
        """
        rollout = drawn.rollout
        request = drawn.part.request
        forced = self._reader.ids(request.forced)
        prompt_ids = rollout.prompt_ids[: rollout.start - len(forced)]
        if list(rollout.prompt_ids[len(prompt_ids) :]) != forced:
            raise CompatibilityError(
                f"the tokenizer merges {request.forced!r} with the prompt; use another one"
            )
        metadata = {"part": float(drawn.part.number), **rollout.metadata}
        if request.chance is not None:
            metadata |= {"chance": request.chance, "forced": float(bool(forced))}
        rollout = replace(
            rollout,
            prompt=request.prompt,
            prompt_ids=prompt_ids,
            response_ids=[*forced, *rollout.response_ids],
            metadata=metadata,
        )
        edited = self._objective.edit(rollout, self._reader)
        return fit_context(edited, self._args.data.max_len)

    @contextmanager
    def _awake(self) -> Iterator[None]:
        """Wake engines that share their GPUs with the policy, and let them sleep afterwards."""
        sleeps = self._args.vllm.enable_sleep
        if sleeps:
            batch_vllm_engine_call(self._engines, "wake_up")
        yield
        if sleeps:
            batch_vllm_engine_call(self._engines, "sleep")


def _rows(loader: Any) -> Iterator[Prompt]:
    """Draw the rows of OpenRLHF's loader, which come one by one."""
    for _, (text,), (label,), _ in loader:
        yield Prompt(text, label)


def _tell_left_over(count: int) -> None:
    if count:
        print(
            f"[swap] the last {count} prompts of this episode do not fill a batch and are left out",
            flush=True,
        )
