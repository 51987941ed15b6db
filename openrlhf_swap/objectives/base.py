"""What a method is: the interface, and the batch it sees.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import StepBatch, StepSignals, step_signals
from openrlhf_swap.algorithm.recipe import Recipe
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.reading import ResponseReader
from openrlhf_swap.rollout import Rollout


@dataclass(frozen=True)
class Sampling:
    """How to sample a part of a group.

    Attributes:
        prompt: as the chat template renders it.
        count: responses.
        max_new_tokens: of each, `forced` included.
        forced: text that every response starts with; it counts as generated and is trained on.
    """

    prompt: str
    count: int
    max_new_tokens: int
    forced: str = ""


@dataclass(frozen=True)
class Monitor:
    """A request to sample prompts of the training set without training on them."""

    prompts: int
    samples: int


@dataclass(frozen=True)
class Batch:
    """G groups of N rollouts, complete and in order.

    Attributes:
        groups: the rollouts.
        recipe: the numbers of the step arithmetic.
        eps: added to standard deviations.
        reader: decodes and cuts responses.
    """

    groups: Sequence[Sequence[Rollout]]
    recipe: Recipe
    eps: float
    reader: ResponseReader

    @cached_property
    def rewards(self) -> Tensor:
        """(G, N) float64, what the grader gave."""
        return torch.tensor([[rollout.reward for rollout in group] for group in self.groups], dtype=torch.float64)

    @cached_property
    def correct(self) -> Tensor:
        """(G, N) bool."""
        return torch.tensor([[rollout.correct for rollout in group] for group in self.groups])

    @cached_property
    def lengths(self) -> Tensor:
        """(G, N) int64, response tokens, the end token included."""
        return torch.tensor([[len(rollout.response_ids) for rollout in group] for group in self.groups])

    @cached_property
    def steps(self) -> StepBatch:
        """The step markers; without steps for a method that asks for no scores."""
        return StepBatch.from_traces([[rollout.trace() for rollout in group] for group in self.groups])

    @cached_property
    def signals(self) -> StepSignals:
        """What the step arithmetic makes of them."""
        return step_signals(self.steps, self.recipe, self.eps)

    def each(self, function: Callable[[Rollout], float]) -> Tensor:
        """(G, N) float64 of a number for every rollout."""
        return torch.tensor([[function(rollout) for rollout in group] for group in self.groups], dtype=torch.float64)


class Objective:
    """A method. As it stands, plain GRPO; a subclass overrides what differs.

    The token advantage is `outcome_weight * normalise(rewards(batch)) + token_term(batch)`.
    """

    normaliser: ClassVar[Literal["group", "centre", "none"]] = "group"
    """(r - mean)/std of the group; r - mean; or r as it is."""
    flags: ClassVar[dict[str, str]] = {}
    """Flags of OpenRLHF that the method needs; what the command line says wins."""
    scores_steps: bool = False
    """Whether the policy has to score the answer after every step."""
    reshapes_responses: ClassVar[bool] = False
    """Whether responses differ from what the engine sampled (forced or deleted tokens)."""
    outcome_weight: float = 1.0

    @dataclass(frozen=True)
    class Settings:
        """The method's own settings, each a flag `--swap.<method>.<name>`; the field's metadata holds its help."""

    def __init__(self, config: SwapConfig) -> None:
        """Reads the method's own settings from `config.options`."""
        self.config = config
        self.settings: Any = settings_from(type(self), config)
        self.recipe = Recipe(config.length_coef, config.temperature, outcome_weight=1.0, process_weight=0.0)
        self.step = 0

    # Before Ray starts.

    def check(self, args: SimpleNamespace) -> None:
        """Raise ConfigError for settings that cannot work with OpenRLHF's `args`."""

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """The user's turn of a row of the data set. The same row must give the same text in every run."""
        return problem

    def check_prompts(self, prompts: Sequence[str]) -> None:
        """Raise DataError for prompts, as the chat template renders them, that cannot be trained on."""

    # Generation.

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[Sampling]:
        """How to sample the `count` responses to a prompt."""
        return [Sampling(prompt, count, max_new_tokens)]

    def edit(self, rollout: Rollout, reader: ResponseReader) -> list[int]:
        """The response to train on instead of the sampled one; may add to `rollout.notes`."""
        return rollout.response_ids

    def monitor(self) -> Monitor | None:
        """What to sample before the next step, if anything."""
        return None

    def observe_monitor(self, batch: Batch) -> None:
        """Look at what `monitor` asked for."""

    # Training.

    def rewards(self, batch: Batch) -> Tensor:
        """(G, N) float64 scalar rewards."""
        return batch.rewards

    def token_term(self, batch: Batch) -> Tensor | None:
        """(G, N, A) what is added to the advantage of each token, after normalisation."""
        return None

    def first_logprob(self, rollout: Rollout, logprob: float) -> float:
        """Behaviour log-probability of the response's first token; `logprob` is the policy's."""
        return logprob

    def metrics(self) -> dict[str, float]:
        """Numbers worth a curve, under `swap/`."""
        return {}

    # Across steps.

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint has to hold."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""


def setting(default: Any, doc: str, is_path: bool = False) -> Any:
    """A field of a method's Settings."""
    return dataclasses.field(default=default, metadata={"doc": doc, "is_path": is_path})


def absolute_paths(kind: type[Objective], options: Mapping[str, str]) -> dict[str, str]:
    """`config.options` with the paths among them made absolute."""
    paths = {spec.name for spec in dataclasses.fields(kind.Settings) if spec.metadata["is_path"]}
    return {name: str(Path(text).absolute()) if name in paths and text else text for name, text in options.items()}


def type_of(spec: dataclasses.Field) -> type:
    """int, float or str: a field's type, also where annotations are kept as text."""
    return {"int": int, "float": float, "str": str}.get(spec.type, spec.type)


def settings_from(kind: type[Objective], config: SwapConfig) -> Any:
    """The method's Settings with the values of `config.options`.

    Raises:
        ConfigError: for an unknown name or a value of the wrong type.
    """
    fields = {spec.name: spec for spec in dataclasses.fields(kind.Settings)}
    values = {}
    for name, text in config.options.items():
        flag = f"--swap.{config.objective}.{name}"
        if name not in fields:
            known = ", ".join(fields) or "none"
            raise ConfigError(f"unknown flag {flag}; the settings of {config.objective} are: {known}")
        kind_of_value = type_of(fields[name])
        try:
            values[name] = kind_of_value(text)
        except ValueError:
            raise ConfigError(f"{flag} is {text!r}; use a value of type {kind_of_value.__name__}") from None
    return kind.Settings(**values)
