"""Rollouts as the objective wants them: how many of which kind, forced beginnings, edits, and a monitoring set."""

from __future__ import annotations

import math
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from tqdm import tqdm
from vllm import SamplingParams

from openrlhf_swap.errors import CompatibilityError, DataError, GenerationError
from openrlhf_swap.integration.generation.continuations import Continuations
from openrlhf_swap.integration.generation.response import (
    EngineResponse,
    Sample,
    rollout_of,
    with_rollout,
    within_context,
)
from openrlhf_swap.objectives.base import Monitor, Objective, SamplingRequest
from openrlhf_swap.objectives.contract import edited, sampling_of
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import StepReader

if TYPE_CHECKING:
    from typing_extensions import Self


class SwapSamplesGenerator(SamplesGenerator):
    """OpenRLHF's generator; evaluation samples are left as they are, but for their prompts."""

    def __init__(self, *args: Any, objective: Objective, reader: StepReader, **kwargs: Any) -> None:
        """Takes the arguments of `SamplesGenerator`, the objective, and a reader of its tokenizer's responses."""
        super().__init__(*args, **kwargs)
        self._objective = objective
        self._reader = reader
        self._evaluating = False
        self._parts: dict[str, tuple[str, int, SamplingRequest]] = {}
        self._plain: dict[str, str] = {}

    @classmethod
    def like(cls, stock: SamplesGenerator, objective: Objective, reader: StepReader) -> Self:
        """One with the same prompts and engines as `stock`, which OpenRLHF's trainer has made."""
        loaders = stock.prompts_dataloader, stock.eval_dataloader
        return cls(stock.strategy, *loaders, stock.tokenizer, stock.vllm_engines, objective=objective, reader=reader)

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        """Overrides SamplesGenerator: asks the prompts as the objective does."""
        self._evaluating, self._plain = True, {}
        try:
            return super().generate_eval_samples(**generate_kwargs)
        finally:
            self._evaluating = False

    def generate_samples(self, **generate_kwargs: Any) -> tuple[list[Experience], float | None, int, bool]:
        """Overrides SamplesGenerator: samples are reproducible, and the objective's steps are counted."""
        self._parts = {}
        if self.args.train.full_determinism_enable:
            seed = f"{self.args.train.seed}:{self._objective.step}"
            ray.get([engine.seed_samples.remote(seed) for engine in self.vllm_engines])
        samples, rate, consumed, exhausted = super().generate_samples(**generate_kwargs)
        if rate is not None:
            rate /= self.args.rollout.n_samples_per_prompt  # OpenRLHF divides responses by prompts
            if exhausted and not samples and not self._objective.step:
                low, high = self.args.algo.dynamic_filtering_range
                raise DataError(
                    f"--algo.dynamic_filtering_enable: in a whole episode fewer than {self.args.rollout.batch_size} "
                    f"prompts had a mean score between {low:g} and {high:g}: take problems that are neither too easy "
                    "nor too hard, or leave the filter out"
                )
        if samples:
            self._objective.end_sampling()
        return samples, rate, consumed, exhausted

    def _sample_monitor(self, request: Monitor, **generate_kwargs: Any) -> Batch:
        """The same training prompts every time, sampled with the training settings."""
        data = self.prompts_dataloader.dataset
        chosen = random.Random(self.args.train.seed).sample(range(len(data)), min(request.prompts, len(data)))
        rows = [data[index] for index in chosen]
        parts = self._dispatch_parts(
            [row[1] for row in rows],
            [row[2] for row in rows],
            **{**generate_kwargs, "n_samples_per_prompt": request.samples},
        )
        done = dict(self._as_they_finish(parts))
        groups = [[rollout_of(response) for response in done[number]] for number in range(len(rows))]
        return Batch(groups, self._objective.coefficients, self._reader)

    def _generate_vllm(
        self, dataloader_iter: Iterator, num_prompts: int, dynamic_filtering: bool, **generate_kwargs: Any
    ) -> tuple[list[Experience], int, bool]:
        """Overrides SamplesGenerator: keeps the order of the prompts and limits the wait for the engines.

        Samples the objective's monitoring set first when it is due.
        """
        if dynamic_filtering:
            groups, consumed, exhausted = self._filtered(dataloader_iter, num_prompts, **generate_kwargs)
        else:
            *rows, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts)
            consumed = len(rows[0])
            whole = self._whole_batches(consumed)
            groups = self._groups(*(column[:whole] for column in rows), **generate_kwargs)
        return [experience for group in groups for experience in group], consumed, exhausted

    def _filtered(
        self, dataloader_iter: Iterator, num_prompts: int, **generate_kwargs: Any
    ) -> tuple[list[list[Experience]], int, bool]:
        """Groups that pass the filter, how many prompts that took, and whether the data ended.

        As many prompts as were dropped are drawn at a time, so a step that is done again has the same ones.
        """
        groups: list[list[Experience]] = []
        consumed, exhausted = 0, False
        while len(groups) < num_prompts and not exhausted:
            *rows, exhausted = _collect_prompt_batch(dataloader_iter, num_prompts - len(groups))
            consumed += len(rows[0])
            groups += filter(self._passes, self._groups(*rows, **generate_kwargs))
        return groups[: self._whole_batches(len(groups))], consumed, exhausted

    def _whole_batches(self, count: int) -> int:
        """The largest number of these prompts that fills whole batches; reports the rest.

        Ranks and DeepSpeed's accumulation count on whole batches: a shorter one would be mixed into the next update,
        or leave ranks with unequal shares waiting for each other.
        """
        rest = 0 if self._evaluating else count % self.args.rollout.batch_size
        if rest:
            print(f"[swap] the last {rest} prompts of this episode do not fill a batch and are left out", flush=True)
        return count - rest

    def _passes(self, group: list[Sample]) -> bool:
        """Whether the group's mean score, as the objective counts, lies within the filter's range, ends excluded."""
        low, high = self.args.algo.dynamic_filtering_range
        rollouts = [replace(sample.rollout, reward=sample.scores[0].item()) for sample in group]
        batch = Batch([rollouts], self._objective.coefficients, self._reader)
        return bool(low < self._objective.filter_scores(batch).mean() < high)

    def _groups(
        self, prompts: list[str], labels: list[str], images: list[Any], **generate_kwargs: Any
    ) -> list[list[Experience]]:
        """The responses to each prompt, after the objective's monitoring set where that is due."""
        if not prompts:
            return []
        if not self._evaluating and (request := self._objective.monitor()) is not None:
            self._objective.observe_monitor(self._sample_monitor(request, **generate_kwargs))
        parts = self._dispatch_parts(prompts, labels, images, **generate_kwargs)
        finished = tqdm(self._as_they_finish(parts), desc="Generate samples", total=len(parts))
        if not self._evaluating and self._objective.continues != "no":
            return self._continued(finished, **generate_kwargs)
        found = {
            number: [self._process_response_into_experience(response, **generate_kwargs) for response in responses]
            for number, responses in finished
        }
        return [found[number] for number in range(len(parts))]

    def _continued(
        self, finished: Iterable[tuple[int, list[EngineResponse]]], **generate_kwargs: Any
    ) -> list[list[Experience]]:
        """Each prompt's samples, with what the objective wants of their continuations."""
        continuing = Continuations(self._objective, self._reader, self.args)
        names = ("temperature", "top_p", "top_k")
        sampling = SamplingParams(**{name: generate_kwargs[name] for name in names if name in generate_kwargs})
        asked = {}
        for number, responses in finished:
            if requests := continuing.requests(number, responses):
                # All of a prompt at one engine, which keeps its beginnings in the cache.
                engine = self.vllm_engines[number % len(self.vllm_engines)]
                common = (responses[0]["label"], sampling, generate_kwargs["max_len"], self.tokenizer)
                asked[number] = engine.continue_responses.remote(requests, *common)
            else:
                continuing.put(number, [])
        started, numbers = time.monotonic(), list(asked)
        for place, results in self._as_they_finish([[asked[number]] for number in numbers]):
            continuing.put(numbers[place], results)
        waited = torch.tensor([time.monotonic() - started])
        groups = []
        for _, responses in sorted(continuing.groups.items()):
            groups.append([self._process_response_into_experience(each, **generate_kwargs) for each in responses])
            for sample, response in zip(groups[-1], responses, strict=True):
                tokens = torch.tensor([float(response.get("continued_tokens", 0))])
                sample.info.update({"swap/continued_tokens": tokens, "swap/continued_seconds": waited})
        return groups

    def _as_they_finish(self, parts: list[list[Any]]) -> Iterator[tuple[int, list[Any]]]:
        """Each prompt's number and responses when all of its parts are there."""
        limit = self.args.swap_run.generation_timeout
        prompt_of = {ref: number for number, refs in enumerate(parts) for ref in refs}
        open_parts = [len(refs) for refs in parts]
        pending = list(prompt_of)
        while pending:
            ready, pending = ray.wait(pending, timeout=None if math.isinf(limit) else limit)
            if not ready:
                raise GenerationError(
                    f"no prompt was finished within --swap.generation_timeout {limit:g} seconds, "
                    f"{sum(map(bool, open_parts))} of {len(parts)} are open: a rollout engine or its grader is "
                    "stuck. Start again with --ckpt.load_enable; give more time if the engines were still at work"
                )
            for number in (prompt_of[ref] for ref in ready):
                open_parts[number] -= 1
                if not open_parts[number]:
                    yield number, [response for part in ray.get(parts[number]) for response in part]

    def _dispatch_parts(
        self, prompts: list[str], labels: list[str], images: list[Any] | None = None, **generate_kwargs: Any
    ) -> list[list[Any]]:
        """The references of each prompt, one for each of its parts."""
        if self._evaluating:
            asked = [self._objective.eval_prompt(prompt) for prompt in prompts]
            self._plain.update(zip(asked, prompts, strict=True))
            return [[ref] for ref in self._dispatch_prompts_to_vllm(asked, labels, images=images, **generate_kwargs)]
        count = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        limit = generate_kwargs["max_new_tokens"]
        alike: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            for part, sampling in enumerate(sampling_of(self._objective, prompt, count, limit)):
                text = sampling.prompt + sampling.forced
                self._parts[text] = (sampling.prompt, part, sampling)
                sampled_tokens = sampling.max_new_tokens - len(self._reader.ids(sampling.forced))
                if sampling.prompt != prompt:  # else it fits, as was seen before the run
                    room = self.args.data.max_len - len(self._reader.ids(text))
                    sampled_tokens = max(1, min(sampled_tokens, room))
                alike[sampling.count, sampled_tokens].append((number, text))

        parts: list[list[Any]] = [[] for _ in prompts]
        for (samples, tokens), members in alike.items():
            changed = {**generate_kwargs, "n_samples_per_prompt": samples, "max_new_tokens": tokens}
            numbers = [number for number, _ in members]
            texts = [text for _, text in members]
            dispatched = self._dispatch_prompts_to_vllm(texts, [labels[n] for n in numbers], **changed)
            for number, ref in zip(numbers, dispatched, strict=True):
                parts[number].append(ref)
        return parts

    def _process_response_into_experience(self, response: EngineResponse, **generate_kwargs: Any) -> Experience:
        """Overrides SamplesGenerator: the sample has the response that the objective trains on, and its rollout."""
        if self._evaluating:
            rollout = rollout_of(response)
            # OpenRLHF's evaluation counts rewards: a share of passed tests is no correct response.
            reward = rollout.reward if rollout.graded_correct is None else float(rollout.graded_correct)
            prompt = self._plain[response["prompt"]]  # which tells its data source
            response = {**response, "prompt": prompt, "reward": reward}
            return super()._process_response_into_experience(response, **generate_kwargs)
        prompt, part, sampling = self._parts[response["prompt"]]
        rollout = rollout_of(response)
        forced = self._reader.ids(sampling.forced)
        if forced:
            head = response["observation_tokens"][: rollout.start]
            if head[-len(forced) :] != forced:
                raise CompatibilityError(
                    f"the tokenizer merges the forced text {sampling.forced!r} with the prompt; use another one"
                )
        rollout = replace(
            rollout,
            prompt=prompt,
            start=rollout.start - len(forced),
            response_ids=[*forced, *rollout.response_ids],
            metadata={"part": float(part), **rollout.metadata},
        )
        rollout = within_context(edited(self._objective, rollout, self._reader), generate_kwargs["max_len"])
        experience = super()._process_response_into_experience(with_rollout(response, rollout), **generate_kwargs)
        return Sample(**vars(experience), rollout=rollout)
