"""Rollouts as the objective wants them: how many of which kind, forced beginnings, edits, and a
monitoring set.

A response has two forms in OpenRLHF, what its engine returns and the row of a batch; all else reads
a `Rollout`.
"""

import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate, chain, pairwise
from statistics import fmean
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator, _collect_prompt_batch
from tqdm import tqdm
from vllm import SamplingParams

from openrlhf_swap.errors import CompatibilityError, ConfigError, DataError, RunError
from openrlhf_swap.objectives.base import Continuation, Objective, SamplingRequest
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT, Reference
from openrlhf_swap.rollouts.rollout import Batch, Rollout, StepReader

FAILED = "swap/reward_function_failed"  # in `extra_logs`: why the reward function gave no reward


@dataclass
class Sample(Experience):
    """One response as OpenRLHF batches it, and its rollout, which micro-batches find by
    `Experience.index`.
    """

    rollout: Rollout = field(kw_only=True)


def read_response(
    response: Mapping[str, Any], start: int | None = None, flag: str = "--reward.remote_url"
) -> Rollout:
    """The rollout of a response that OpenRLHF's engine returned.

    `start` is where it begins in `observation_tokens`, if before the tokens that were generated
    last. Raises DataError, which names the flag of what gave the reward, when there is none, or
    when it, the score or a number for the metrics is not finite.
    """
    ids, ranges = (
        response["observation_tokens"],
        [tuple(bounds) for bounds in response["action_ranges"]],
    )
    if not ranges:
        raise DataError(
            "the agent of --train.agent_func_path generated nothing for a prompt: its first observation fills "
            "--data.max_len; use a larger one"
        )
    start = ranges[0][0] if start is None else start
    ranges[0] = (start, ranges[0][1])
    generated = [ids[begin:end] for begin, end in ranges]
    places = list(accumulate(map(len, generated)))
    between = [ids[end:begin] for (_, end), (begin, _) in pairwise(ranges)]
    logs = {name: _unlisted(value) for name, value in (response.get("extra_logs") or {}).items()}
    reward, scores, verdict = (
        _unlisted(response["reward"]),
        _unlisted(response["scores"]),
        logs.get(GRADED_CORRECT),
    )
    if reward is None:
        reason = logs.get(FAILED, "its own error is in the log above")
        raise DataError(f"the reward function of {flag} gave no reward for a response: {reason}")
    for name, value in {"the reward": reward, "the score": scores, **logs}.items():
        try:
            finite = value is None or math.isfinite(value)
        except (TypeError, ValueError, RuntimeError):
            finite = False
        if not finite:
            raise DataError(
                f"{flag} gave {value!r} as {name} of a response; it has to be one finite number"
            )
    return Rollout(
        prompt=response["prompt"],
        answer=Reference.parse(response["label"]).answer,
        response_ids=list(chain.from_iterable(generated)),
        prompt_ids=ids[:start],
        reward=float(reward),  # of a tensor with one number, too
        truncated=bool(response.get("truncated", False)),
        graded_correct=None if verdict is None else verdict > 0,
        record={
            "label": response["label"],
            "scores": scores,
            "rollout_log_probs": response["rollout_log_probs"],
            "extra_logs": logs,
        },
        observations=list(zip(places, between, strict=False)),
    )


def _unlisted(value: Any) -> Any:
    """The number in a list of one, as a reward server gives it for its one query."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def make_sample(rollout: Rollout, context: int) -> Sample:
    """OpenRLHF's row of a response, which ends with the context; what an environment wrote is no
    action in it.
    """
    kept = int((rollout.positions < context).sum())
    inside = [(place, seen) for place, seen in rollout.observations if place < kept]
    rollout = replace(rollout, response_ids=rollout.response_ids[:kept], observations=inside)
    ids, bounds = rollout.row_ids, rollout.positions.tolist()
    starts = [0, *(place for place, _ in inside), kept]
    logprobs = rollout.record["rollout_log_probs"]
    response = {
        **rollout.record,
        "rollout_log_probs": logprobs if logprobs is None else logprobs[: len(ids)],
        "prompt": rollout.prompt,
        "observation_tokens": ids,
        "action_ranges": [
            (bounds[begin], bounds[end - 1] + 1) for begin, end in pairwise(starts) if begin < end
        ],
        "reward": rollout.reward,
        "truncated": rollout.truncated,
    }
    row = SamplesGenerator._process_response_into_experience(None, response, max_len=context)
    return Sample(**vars(row), rollout=replace(rollout, record={}))


@dataclass(frozen=True)
class ContinuationRequest:
    row: int  # of the response in its group
    wanted: Continuation  # what the objective asked for, shortened to what fits the context
    prefix: Rollout  # the response's kept tokens, and the suffix


class StoredTokenizer:
    """A tokenizer that OpenRLHF sends along with every prompt, and that each engine reads once:
    R1's takes 0.5 s.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self._stored = tokenizer, None

    def __reduce__(self) -> tuple[Any, ...]:
        self._stored = self._stored or ray.put(self._tokenizer)
        return read_once, (self._stored,)

    def __call__(self, *texts: Any, **options: Any) -> Any:
        return self._tokenizer(*texts, **options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


@cache
def read_once(stored: Any) -> Any:
    return ray.get(stored)


class SwapSamplesGenerator(SamplesGenerator):
    """OpenRLHF's generator; evaluation samples are left as they are, but for their prompts."""

    def __init__(self, stock: SamplesGenerator, objective: Objective, reader: StepReader) -> None:
        loaders = stock.prompts_dataloader, stock.eval_dataloader
        super().__init__(
            stock.strategy, *loaders, StoredTokenizer(stock.tokenizer), stock.vllm_engines
        )
        self._objective, self._reader, self._evaluating = objective, reader, False
        # The text that an engine gets -> the prompt of the sample, and of a training's which part
        # of its group.
        self._sources: dict[str, tuple[str, int, SamplingRequest]] = {}
        self._continued_seconds = 0.0

    def generate_eval_samples(self, **generate_kwargs: Any) -> list[Experience]:
        self._evaluating, self._sources = True, {}
        try:
            return super().generate_eval_samples(**generate_kwargs)
        finally:
            self._evaluating = False

    def generate_samples(
        self, **generate_kwargs: Any
    ) -> tuple[list[Experience], float | None, int, bool]:
        """Overrides SamplesGenerator: samples are reproducible, and the objective's steps are
        counted.
        """
        self._sources = {}
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
            self._objective.step += 1
        return samples, rate, consumed, exhausted

    def _sample_monitor(self, prompts: int, samples: int, **generate_kwargs: Any) -> Batch:
        data = self.prompts_dataloader.dataset
        chosen = random.Random(self.args.train.seed).sample(
            range(len(data)), min(prompts, len(data))
        )
        rows = [data[index] for index in chosen]
        generate_kwargs = {**generate_kwargs, "n_samples_per_prompt": samples}
        parts = self._dispatch(
            [row[1] for row in rows], [row[2] for row in rows], **generate_kwargs
        )
        groups = dict(self._collect_finished(parts))
        return Batch(
            [groups[number] for number in range(len(rows))],
            self._objective.coefficients,
            self._reader,
        )

    def _generate_vllm(
        self,
        dataloader_iter: Iterator,
        num_prompts: int,
        dynamic_filtering: bool,
        **generate_kwargs: Any,
    ) -> tuple[list[Experience], int, bool]:
        """Overrides SamplesGenerator: a step that is repeated draws the same prompts, as many as
        were dropped.
        """
        groups: list[list[Sample]] = []
        consumed, exhausted = 0, False
        while len(groups) < num_prompts and not exhausted:
            prompts, labels, _, exhausted = _collect_prompt_batch(
                dataloader_iter, num_prompts - len(groups)
            )
            consumed += len(prompts)
            if dynamic_filtering:
                groups += filter(
                    self._passes, self._generate_groups(prompts, labels, **generate_kwargs)
                )
            else:
                whole = self._whole_batches(len(prompts))
                groups = self._generate_groups(prompts[:whole], labels[:whole], **generate_kwargs)
                break
        if dynamic_filtering:
            groups = groups[: self._whole_batches(len(groups))]
        samples = [sample for group in groups for sample in group]
        if not self._evaluating:
            _check_names(samples)
        return samples, consumed, exhausted

    def _whole_batches(self, count: int) -> int:
        """The largest number of these prompts that fills whole batches: others would be mixed into
        the next update.
        """
        rest = 0 if self._evaluating else count % self.args.rollout.batch_size
        if rest:
            print(
                f"[swap] the last {rest} prompts of this episode do not fill a batch and are left out",
                flush=True,
            )
        return count - rest

    def _passes(self, group: list[Sample]) -> bool:
        """Whether the group's mean score, as the objective counts, lies within the filter's range,
        ends excluded.
        """
        low, high = self.args.algo.dynamic_filtering_range
        rollouts = [replace(sample.rollout, reward=sample.scores[0].item()) for sample in group]
        batch = Batch([rollouts], self._objective.coefficients, self._reader)
        return bool(low < self._objective.filter_scores(batch).mean() < high)

    def _generate_groups(
        self, prompts: list[str], labels: list[str], **generate_kwargs: Any
    ) -> list[list[Sample]]:
        """The responses to each prompt, after the objective's monitoring set where that is due."""
        if not prompts:
            return []
        if not self._evaluating and (request := self._objective.monitor()) is not None:
            self._objective.observe_monitor(self._sample_monitor(*request, **generate_kwargs))
        parts = self._dispatch(prompts, labels, **generate_kwargs)
        finished: Iterable[tuple[int, list[Rollout]]] = self._collect_finished(parts)
        continues = not self._evaluating and self._objective.continues != "no"
        if continues:
            finished = self._continue_groups(finished, **generate_kwargs)
        context, groups = generate_kwargs["max_len"], {}
        for number, rollouts in tqdm(finished, desc="Generate samples", total=len(parts)):
            groups[number] = [self._make_sample(rollout, context) for rollout in rollouts]
        if continues:
            for sample in (sample for group in groups.values() for sample in group):
                tokens = sample.rollout.metadata.get("continued_tokens", 0.0)
                sample.info["swap/continued_tokens"] = torch.tensor([tokens])
                sample.info["timing/continuations"] = torch.tensor([self._continued_seconds])
        return [groups[number] for number in range(len(parts))]

    def _continue_groups(
        self, finished: Iterable[tuple[int, list[Rollout]]], **generate_kwargs: Any
    ) -> Iterator[tuple[int, list[Rollout]]]:
        """The groups with what the objective generates from their responses, as soon as those are
        complete.
        """
        context = generate_kwargs["max_len"]
        names = ("temperature", "top_p", "top_k")
        sampling = SamplingParams(
            **{name: generate_kwargs[name] for name in names if name in generate_kwargs}
        )
        waiting, refs = [], []
        for number, group in finished:
            requests = [
                self._continuation_request(row, rollout, wanted)
                for row, rollout in enumerate(group)
                for wanted in self._objective.continuations(rollout, self._reader)
            ]
            if not requests:
                yield number, self._with_continuations(group, [], [])
                continue
            # All of a prompt at one engine, which keeps its beginnings in the cache.
            engine = self.vllm_engines[number % len(self.vllm_engines)]
            refs.append(
                [engine.continue_rollouts.remote(requests, sampling, context, self.tokenizer)]
            )
            waiting.append((number, group, requests))
        started = time.monotonic()
        for place, results in self._collect_finished(refs):
            number, group, requests = waiting[place]
            yield number, self._with_continuations(group, requests, results)
        self._continued_seconds = time.monotonic() - started

    def _continuation_request(
        self, row: int, rollout: Rollout, wanted: Continuation
    ) -> ContinuationRequest:
        suffix, context = self._reader.ids(wanted.suffix), self.args.data.max_len
        capacity = context - rollout.start - len(suffix)
        if capacity < 1:
            raise ConfigError(
                f"--data.max_len is {context}, which leaves no room for what {self._objective.config.objective} adds "
                f"to a prompt of {rollout.start} tokens: use at least {context + 1 - capacity}"
            )
        kept = min(wanted.kept, len(rollout.response_ids), capacity - 1)
        fitted = replace(
            wanted, kept=kept, max_new_tokens=min(wanted.max_new_tokens, capacity - kept)
        )
        return ContinuationRequest(
            row, fitted, replace(rollout, response_ids=[*rollout.response_ids[:kept], *suffix])
        )

    def _with_continuations(
        self,
        group: list[Rollout],
        requests: list[ContinuationRequest],
        results: list[list[Rollout]],
    ) -> list[Rollout]:
        """The group with the results of its requests: joined to it, or counted in `probes`.

        `continued_tokens` in a response's metadata are those of its continuations. If they join,
        they have their own, and `kept` counts tokens taken from the original response (all, for an
        original).
        """
        joins, joining = self._objective.continues == "join", []
        probes: list[list[tuple[int, float]]] = [[] for _ in group]
        tokens = [0.0] * len(group)
        for request, rollouts in zip(requests, results, strict=True):
            kept, row = request.wanted.kept, request.row
            new = [
                float(len(rollout.response_ids) - len(request.prefix.response_ids))
                for rollout in rollouts
            ]
            if joins:
                for rollout, count in zip(rollouts, new, strict=True):
                    joining.append(
                        replace(rollout, metadata={"kept": float(kept), "continued_tokens": count})
                    )
            else:
                probes[row].append((kept, fmean(rollout.correct for rollout in rollouts)))
                tokens[row] += sum(new)
        originals = [
            {"kept": float(len(rollout.response_ids))} if joins else rollout.metadata
            for rollout in group
        ]
        group = [
            replace(
                rollout,
                probes=probes[row],
                metadata={**originals[row], "continued_tokens": tokens[row]},
            )
            for row, rollout in enumerate(group)
        ] + joining
        size = self.args.rollout.n_samples_per_prompt
        if len(group) != size:
            raise ConfigError(
                f"{self._objective.config.objective} filled a group with {len(group)} responses, but "
                f"--rollout.n_samples_per_prompt is {size}: its sampling and its continuations do not fit each other"
            )
        return group

    def _collect_finished(self, parts: list[list[Any]]) -> Iterator[tuple[int, list[Any]]]:
        """Each prompt's number and responses when all of its parts are there."""
        limit = self.args.swap_run.generation_timeout
        prompt_of = {ref: number for number, refs in enumerate(parts) for ref in refs}
        open_parts = [len(refs) for refs in parts]
        pending = list(prompt_of)
        while pending:
            ready, pending = ray.wait(pending, timeout=None if math.isinf(limit) else limit)
            if not ready:
                raise RunError(
                    f"no prompt was finished within --swap.generation_timeout {limit:g} seconds, "
                    f"{sum(map(bool, open_parts))} of {len(parts)} are open: a rollout engine or its grader is "
                    "stuck. Start again with --ckpt.load_enable; give more time if the engines were still at work"
                )
            for number in (prompt_of[ref] for ref in ready):
                open_parts[number] -= 1
                if not open_parts[number]:
                    yield number, [response for part in ray.get(parts[number]) for response in part]

    def _dispatch(
        self, prompts: list[str], labels: list[str], **generate_kwargs: Any
    ) -> list[list[Any]]:
        """The references of each prompt, one for each part of its group."""
        count = generate_kwargs.get("n_samples_per_prompt", self.args.rollout.n_samples_per_prompt)
        limit = generate_kwargs["max_new_tokens"]
        alike: dict[tuple[int, int], list[tuple[int, str]]] = defaultdict(list)
        for number, prompt in enumerate(prompts):
            if self._evaluating:
                requests = [SamplingRequest(self._objective.eval_prompt(prompt), count, limit)]
            else:
                requests = self._objective.sampling(prompt, count, limit)
            for part, request in enumerate(requests):
                text = request.prompt + request.forced
                # OpenRLHF looks an evaluation's data source up by the prompt of its own.
                self._sources[text] = (
                    prompt if self._evaluating else request.prompt,
                    part,
                    request,
                )
                tokens = request.max_new_tokens - len(self._reader.ids(request.forced))
                if request.prompt != prompt:  # else it fits, as was seen before the run
                    tokens = max(
                        1, min(tokens, self.args.data.max_len - len(self._reader.ids(text)))
                    )
                alike[request.count, tokens].append((number, text))

        parts: list[list[Any]] = [[] for _ in prompts]
        for (samples, tokens), members in alike.items():
            changed = {**generate_kwargs, "n_samples_per_prompt": samples, "max_new_tokens": tokens}
            texts = [text for _, text in members]
            refs = self._dispatch_prompts_to_vllm(
                texts, [labels[number] for number, _ in members], **changed
            )
            for (number, _), ref in zip(members, refs, strict=True):
                parts[number].append(ref)
        return parts

    def _make_sample(self, rollout: Rollout, context: int) -> Sample:
        prompt, part, request = self._sources[rollout.prompt]
        if self._evaluating:
            # OpenRLHF's evaluation counts rewards: a share of passed tests is not a correct
            # response.
            reward = (
                rollout.reward if rollout.graded_correct is None else float(rollout.graded_correct)
            )
            return make_sample(replace(rollout, prompt=prompt, reward=reward), context)
        forced, start = self._reader.ids(request.forced), rollout.start
        if forced and list(rollout.prompt_ids[-len(forced) :]) != forced:
            raise CompatibilityError(
                f"the tokenizer merges {request.forced!r} with the prompt; use another one"
            )
        metadata = {"part": float(part), **rollout.metadata}
        if request.chance is not None:
            metadata |= {"chance": request.chance, "forced": float(bool(forced))}
        rollout = replace(
            rollout,
            prompt=prompt,
            prompt_ids=rollout.prompt_ids[: start - len(forced)],
            response_ids=[*forced, *rollout.response_ids],
            metadata=metadata,
        )
        return make_sample(self._objective.edit(rollout, self._reader), context)


def _check_names(samples: Sequence[Sample]) -> None:
    """Raise DataError for a metric of the environment's that some responses lack: OpenRLHF cannot
    batch those.
    """
    counts = Counter(name for sample in samples for name in sample.info)
    if rare := [name for name, count in counts.items() if count < len(samples)]:
        raise DataError(
            f"the extra_logs of {len(samples) - counts[rare[0]]} of {len(samples)} responses lack {rare[0]!r}: return "
            "the same names in every turn, with 0 where there is nothing to count"
        )
