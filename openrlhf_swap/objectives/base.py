"""The objective: what a run rewards, and what it changes on the way there.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.config import FlagSettings, SwapConfig, extra, short_name
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.ablation import plain_coefficients
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Rollout


@dataclass(frozen=True)
class SamplingRequest:
    """How to sample a part of a group: `count` responses to a prompt, as the chat template renders it.

    Every response starts with the text `forced`, which counts as generated and is trained on.
    """

    prompt: str
    count: int
    max_new_tokens: int
    forced: str = ""


@dataclass(frozen=True)
class Continuation:
    """A second generation, `count` times, from the first `kept` tokens of a response and a text behind them.

    `suffix` counts as part of the response. Where the context is full, fewer tokens follow it, but one at least.
    """

    kept: int
    suffix: str
    max_new_tokens: int
    count: int = 1


@dataclass(frozen=True)
class Monitor:
    """A request to sample prompts of the training set without training on them."""

    prompts: int
    samples: int


class Objective:
    """Plain GRPO as it stands; a subclass overrides what differs.

    The advantage of a token is `outcome_weight * normalise(rewards) + process_weight * token_advantages`. Its
    methods follow the order of a run: before Ray starts, generation, training; then what is kept across steps.
    """

    normaliser: ClassVar[Literal["group", "centre", "none"]] = "group"
    """(r - mean)/std of the group; r - mean; or r as it is."""
    flags: ClassVar[dict[str, str]] = {}
    """Flags of OpenRLHF that the objective needs; the command line wins."""
    scores_steps: bool = False
    """Whether the policy has to score the answer after every step."""
    reads_states: bool = False
    """Whether the policy's hidden states at the ends of steps are needed, of every response (`Rollout.states`)."""
    continues: ClassVar[Literal["no", "grade", "join"]] = "no"
    """Whether responses have `continuations`, which are only graded (`Rollout.probes`) or join the group."""
    boxes_answers: ClassVar[bool] = False
    """Whether it asks for a boxed answer, looks for one, or looks for the reference answer in a thought."""
    needs_all_groups: bool = True
    """Whether groups that are all correct or all wrong teach something; dynamic filtering drops them."""
    needs_closed_thought: ClassVar[bool] = False
    """Whether an answer counts as correct only behind a closed thought. The grader does not ask for one: it also finds
    a box in a thought that never closes."""
    needs_end: ClassVar[bool] = False
    """Whether a response that the token limit cut off counts as wrong, whatever the grader says."""
    reshapes_responses: ClassVar[bool] = False
    """Whether responses differ from what the engine sampled (forced or deleted tokens)."""
    remembers_batches: ClassVar[bool] = False
    """Whether `rewards` changes the objective's state, so that batches must come one after the other."""
    outcome_weight: float = 1.0
    process_weight: float = 1.0
    settings: Any
    """The objective's own settings, an instance of its class `Settings`."""

    class Settings(FlagSettings):
        """The objective's own settings, each a flag `--swap.<objective>.<name>`."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.reshapes_responses |= cls.continues == "join"

    def __init__(self, config: SwapConfig) -> None:
        """Reads the settings from `config.options`; raises ConfigError for an unknown name or a bad value."""
        self.config = config
        self.name = short_name(config.objective)
        self.settings = self.Settings.from_text(config.options, f"swap.{self.name}")
        self.coefficients: Coefficients = plain_coefficients(config)
        """What `Batch.signals` is computed with."""
        self.step = 0
        """Batches sampled so far; in `rewards` and `token_advantages` the batch itself is counted."""

    @property
    def reads_answers(self) -> bool:
        """Whether it needs reference answers that a response could state: not, say, unit tests."""
        return self.scores_steps or self.boxes_answers

    def numbers(self, name: str, remedy: str, most: int | None = None) -> list[int]:
        """A setting such as 10,30,50 as whole numbers from 1 to `most`; raises ConfigError with the remedy."""
        text = getattr(self.settings, name)
        try:
            found = [int(word) for word in text.split(",")]
        except ValueError:
            found = [0]
        if min(found) < 1 or max(found) > (most or max(found)):
            raise ConfigError(f"--swap.{self.name}.{name} is {text!r}; use {remedy}")
        return found

    def stage_limits(self, stages: int) -> list[int]:
        """The setting `limits`: a token limit for each of this many stages, or none at all; raises ConfigError."""
        if not self.settings.limits:
            return []
        example = ",".join(str(2048 * (stage + 1)) for stage in range(stages))
        found = self.numbers("limits", f"{stages} token limits such as {example}")
        if len(found) != stages:
            raise ConfigError(f"--swap.{self.name}.limits is {self.settings.limits!r}; use {stages} token limits")
        return found

    def check_limits(self, limits: Sequence[int], args: SimpleNamespace) -> None:
        """Raise ConfigError for a stage's limit above the longest response."""
        longest, limit = max(limits, default=0), args.rollout.max_new_tokens
        if longest > limit:
            found = f"--swap.{self.name}.limits has {longest}, but --rollout.max_new_tokens is {limit}"
            raise ConfigError(f"{found}; raise that, or lower the limit")

    def check(self, args: SimpleNamespace) -> None:
        """Raise ConfigError for settings that cannot work with OpenRLHF's `args`."""

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """The user's turn of a row of the data set. The same row must give the same text in every run."""
        return problem

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Raise DataError for prompts, as the chat template renders them, that cannot be trained on."""

    def eval_prompt(self, prompt: str) -> str:
        """What an evaluation during the training asks, instead of a prompt as the chat template renders it."""
        return prompt

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """How to sample the `count` responses to a prompt."""
        return [SamplingRequest(prompt, count, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """What to generate from a response of the engine, by `continues`.

        Those that join come behind the group's responses, and with them fill it; their metadata has `kept`.
        """
        return []

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """The response to train on instead of the sampled one, and what to remember of it in `metadata`."""
        return rollout

    def monitor(self) -> Monitor | None:
        """What to sample before the next step, if anything."""
        return None

    def observe_monitor(self, batch: Batch) -> None:
        """Look at what `monitor` asked for."""

    def correct(self, batch: Batch) -> Tensor:
        """(G, N) bool, what counts as correct: by the grader, `needs_closed_thought` and `needs_end`."""
        correct = batch.correct
        if self.needs_closed_thought:
            correct = correct & batch.closed
        return correct & ~batch.truncated if self.needs_end else correct

    def filter_scores(self, batch: Batch) -> Tensor:
        """(G, N) float64: dynamic filtering keeps the groups whose mean lies within its range, the ends excluded.

        The grader's rewards, and 0 for a response that does not count as correct. Must not change the state.
        """
        return torch.where(batch.correct & ~self.correct(batch), 0.0, batch.rewards)

    def rewards(self, batch: Batch) -> Tensor:
        """(G, N) float64 scalar rewards."""
        return self.filter_scores(batch)

    def token_advantages(self, batch: Batch) -> Tensor | None:
        """(G, N, A) what is added to each token's normalised outcome, times `process_weight`; None for nothing."""
        return None

    def first_logprob(self, rollout: Rollout, logprob: float) -> float:
        """Behaviour log-probability of the response's first token; `logprob` is the policy's."""
        return logprob

    def metrics(self) -> dict[str, float]:
        """Numbers worth a curve, under `swap/`."""
        return {}

    def end_sampling(self) -> None:
        """Count a step whose batch was sampled."""
        self.step += 1

    def resume(self, step: int, state: dict[str, Any] | None = None) -> None:
        """Go on behind a step, with a checkpoint's state where there is one."""
        self.step = step
        if state is not None:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""

    def learned(self) -> dict[str, Any]:
        """What `token_advantages` has learned from batches, for a checkpoint.

        Unlike `state_dict`, it changes nothing in the sampling: in an asynchronous run it stays with the training.
        """
        return {}

    def load_learned(self, learned: dict[str, Any]) -> None:
        """Go on from what a checkpoint holds of it."""

    def predicted_tokens_left(self) -> Sequence[Sequence[float]] | None:
        """What was predicted to be left at each state of each response of the last batch, in tokens; None if not."""
        return None


def absolute_paths(kind: type[Objective], options: Mapping[str, str]) -> dict[str, str]:
    """`config.options` with the paths among them made absolute."""
    paths = {name for name, spec in kind.Settings.declared().items() if extra(spec)["is_path"]}
    return {name: str(Path(text).absolute()) if name in paths and text else text for name, text in options.items()}
