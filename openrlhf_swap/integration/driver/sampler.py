"""Prompts to groups of rollouts, with continuations, edits and the filter.

A prompt's group is asked for in parts, as the objective wants them. A part stays beside its
responses until these are finished rollouts, so that nothing has to be looked up by a text.
"""

import itertools
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice
from operator import attrgetter
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from openrlhf.trainer.ppo_trainer import compute_eval_metrics
from tqdm import tqdm

from openrlhf_swap.errors import CompatibilityError, DataError
from openrlhf_swap.integration.driver.continuations import Continuations
from openrlhf_swap.integration.driver.engines import Drawn, DrawnGroup, Engines, Part, Prompt
from openrlhf_swap.integration.driver.experience import check_names, experience_row, fit_context
from openrlhf_swap.objectives.base import Objective, SamplingRequest
from openrlhf_swap.process.console import say
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout
from openrlhf_swap.runs.checkpoints import LoopStates
from openrlhf_swap.runs.metrics import Metrics

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
    position: LoopStates
    objective_step: int
    objective_state: LoopStates
    updates: int
    metrics: Metrics


@dataclass(frozen=True)
class _Sampled:
    """The groups of a step, the number of prompts that they took, and numbers about them."""

    groups: Groups
    prompts: int
    metrics: Metrics


class Sampler:
    """Samples the batches of a run one after the other, and its evaluations.

    The objective is the sampler's own in an asynchronous run, and otherwise that of the loop.
    """

    def __init__(
        self,
        args: SimpleNamespace,
        prompts: Any,
        evaluation_prompts: Any,
        engines: list[Any],
        objective: Objective,
        reader: StepReader,
    ) -> None:
        """Take OpenRLHF's arguments, data loaders (None for no evaluation) and engines."""
        self._args = args
        self._prompts = prompts
        self._evaluation_prompts = evaluation_prompts
        self._engines = Engines(args, engines, reader)
        self._objective = objective
        self._reader = reader
        self._continuations = Continuations(args, objective, reader, self._engines)
        self._filters = args.algo.dynamic_filtering_enable
        self.updates = 0  # how often `replacing_weights` was left without an error

    def resume(self, step: int, objective_state: LoopStates | None) -> None:
        """Go on after a step, with the objective's state in its checkpoint, if there is one."""
        self._objective.resume(step, objective_state)

    def batches(self, position: LoopStates) -> Iterator[SampledBatch]:
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
                sampled = self._sample_batch(prompts)
                if not sampled.groups:
                    break
                consumed += sampled.prompts
                self._objective.step += 1
                yield SampledBatch(
                    groups=sampled.groups,
                    position={
                        "episode": episode,
                        "total_consumed_prompts": consumed,
                        "data_loader_state_dict": self._prompts.state_dict(),
                    },
                    objective_step=self._objective.step,
                    objective_state=self._objective.state_dict(),
                    updates=updates,
                    metrics=sampled.metrics,
                )
            if self._filters and not self._objective.step:
                low, high = self._args.algo.dynamic_filtering_range
                raise DataError(
                    f"--algo.dynamic_filtering_enable: in a whole episode fewer than "
                    f"{self._args.rollout.batch_size} prompts had a mean score between {low:g} and "
                    f"{high:g}: take problems that are neither too easy nor too hard, or leave the "
                    "filter out"
                )
            # The run ends after its last step, and after a whole pass that gave no step. The rest
            # of the pass in which a checkpoint was written may give none.
            is_empty = self._objective.step == step_before and episode > position["episode"]
            if self._filters and is_empty:
                _tell_empty_pass(episode, self._objective.step, last_step)
            if last_step and (is_empty or self._objective.step == last_step):
                return

    def _episodes(self, first: int) -> Iterable[int]:
        """The numbers of the passes over the data; without an end if the steps are counted."""
        if self._args.swap_run.training_steps:
            return itertools.count(first)
        return range(first, self._args.train.num_episodes)

    def _sample_batch(self, prompts: Iterator[Prompt]) -> _Sampled:
        """Sample a step's groups; none when the prompts that are left do not fill a batch.

        The filter's dropped prompts are replaced by the next ones.
        """
        size = self._args.rollout.batch_size
        groups: Groups = []
        metrics: Metrics = {}
        consumed = 0
        with self._engines.awake():
            while len(groups) < size:
                wanted = size - len(groups)
                rows = list(islice(prompts, wanted))
                if len(rows) < wanted:
                    _tell_left_over(len(groups) + len(rows))
                    return _Sampled([], consumed, metrics)
                if not consumed:
                    self._monitor()
                consumed += wanted
                sampled = self._sample_groups(rows, metrics)
                groups += filter(self._passes, sampled) if self._filters else sampled
        rollouts = list(chain.from_iterable(groups))
        check_names(rollouts)
        if self._filters:
            metrics["dynamic_filtering_pass_rate"] = size / consumed * 100
        if self._objective.continues:
            metrics["swap/continued_tokens"] = fmean(
                rollout.metadata["continued_tokens"] for rollout in rollouts
            )
        return _Sampled(groups, consumed, metrics)

    def _monitor(self) -> None:
        """Show the objective the monitoring set that it asks for before this step, if it does."""
        wanted = self._objective.monitor()
        if wanted is None:
            return
        most, count = wanted
        data = self._prompts.dataset
        size = min(most, len(data))
        chosen = random.Random(self._args.train.seed).sample(range(len(data)), size)
        prompts = [Prompt(*data[index][1:3]) for index in chosen]
        groups: Groups = [[] for _ in prompts]
        for drawn in self._draw(prompts, count):
            groups[drawn.number] = [each.rollout for each in drawn.responses]
        self._objective.observe_monitor(self._batch(groups))

    def _sample_groups(self, prompts: Sequence[Prompt], metrics: Metrics) -> Groups:
        """Sample a finished group for each prompt."""
        drawn = self._draw(prompts, self._args.rollout.n_samples_per_prompt)
        if self._objective.continues:
            drawn = self._continuations.continued(drawn, metrics)
        groups: Groups = [[] for _ in prompts]
        for group in tqdm(drawn, desc="Generate samples", total=len(prompts)):
            groups[group.number] = [self.finish(each) for each in group.responses]
        return groups

    def _draw(self, prompts: Sequence[Prompt], count: int) -> Iterator[DrawnGroup]:
        """Draw so many responses to each prompt, in the parts that the objective wants."""
        rollout = self._args.rollout
        parts = []
        for prompt in prompts:
            requests = self._objective.sampling(prompt.text, count, rollout.max_new_tokens)
            parts.append([Part(number, request) for number, request in enumerate(requests)])
        return self._engines.draw(prompts, parts, rollout.temperature, self._objective.step)

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

    def evaluate(self, step: int) -> Metrics:
        """Sample the evaluation's prompts after a step; the metrics have OpenRLHF's names."""
        count = self._args.eval.n_samples_per_prompt
        context = self._args.data.max_len
        loaded = list(self._evaluation_prompts)
        prompts = list(_rows(loaded))
        limit = self._args.rollout.max_new_tokens
        parts = []
        for prompt in prompts:
            text = self._objective.eval_prompt(prompt.text)
            parts.append([Part(0, SamplingRequest(text, count, limit))])
        with self._engines.awake():
            drawn = list(self._engines.draw(prompts, parts, self._args.eval.temperature, step))
        # OpenRLHF looks the data source up by the prompt. A prompt may stand in two sources, so it
        # gets the number of its row instead.
        numbered = []
        for number, (sources, _, labels, images) in enumerate(loaded):
            numbered.append((sources, [str(number)], labels, images))
        rows = []
        for group in sorted(drawn, key=attrgetter("number")):
            for each in group.responses:
                # OpenRLHF counts rewards, and a share of passed tests is not a correct response.
                rollout = replace(each.rollout, prompt=str(group.number))
                if rollout.graded_correct is not None:
                    rollout = replace(rollout, reward=float(rollout.graded_correct))
                rows.append(experience_row(fit_context(rollout, context), context))
        return compute_eval_metrics(numbered, rows, count)

    @contextmanager
    def replacing_weights(self) -> Iterator[None]:
        """Count that the block has replaced the engines' weights, unless it ends with an error."""
        yield
        self.updates += 1

    def stop(self) -> None:
        """End what runs beside the training, because the training ends with an error."""


def _rows(loader: Any) -> Iterator[Prompt]:
    """Draw the rows of OpenRLHF's loader, which come one by one."""
    for _, (text,), (label,), _ in loader:
        yield Prompt(text, label)


def _tell_left_over(count: int) -> None:
    if count:
        say(f"the last {count} prompts of this episode do not fill a batch and are left out")


def _tell_empty_pass(episode: int, step: int, last_step: int) -> None:
    """Say that the filter left no batch in a pass, and whether the run ends with it."""
    end = f", and the run ends after step {step} of {last_step}" if last_step else ""
    say(
        f"warning: --algo.dynamic_filtering_enable left too few prompts for a batch in episode "
        f"{episode}, so this episode trained nothing{end}: take harder or easier problems"
    )
