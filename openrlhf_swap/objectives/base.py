"""The objective: what a run rewards, and what it changes on the way there.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

import random
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import torch
from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo
from torch import Tensor

from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.config import FlagSettings, SwapConfig, setting, short_name
from openrlhf_swap.errors import ObjectiveError
from openrlhf_swap.objectives.registry import plain_coefficients
from openrlhf_swap.rollouts.rollout import Batch, ResponseReader, Rollout


def split_numbers(value: Any) -> Any:
    """The numbers of a text such as 10,30,50; none of an empty one."""
    return [word for word in value.split(",") if word] if isinstance(value, str) else value


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(split_numbers)]
"""The type of a setting whose flag takes text such as 10,30,50."""


def numbers(default: str, doc: str) -> Any:
    """Declare a setting of one number or more."""
    return setting(
        default, doc, f"use numbers such as {default}", min_length=1, validate_default=True
    )


@dataclass(frozen=True)
class SamplingRequest:
    """How to sample a part of a group: `count` responses to a prompt, as the chat template renders
    it.

    Every response starts with the text `forced`, which counts as generated and is trained on. If
    the policy should learn to choose between the parts of a group, `chance` is the probability with
    which it counts as having chosen this one: of a response's first token if that is forced, times
    the policy's own if not.
    """

    prompt: str
    count: int
    max_new_tokens: int
    forced: str = ""
    chance: float | None = None


@dataclass(frozen=True)
class Continuation:
    """A second generation, `count` times, from the first `kept` tokens of a response and a text
    after them.

    `suffix` counts as part of the response. Where the context is full, fewer tokens follow it, but
    at least one.
    """

    kept: int
    suffix: str
    max_new_tokens: int
    count: int = 1

    def __post_init__(self) -> None:
        if self.kept < 0:  # it would drop tokens of the prompt
            raise ObjectiveError(
                f"a Continuation keeps {self.kept} tokens of the response; use at least 0"
            )


class Objective:
    """Plain GRPO; a subclass overrides what differs.

    The advantage of a token is `outcome_weight * normalise(rewards) + process_weight *
    token_advantages`. The methods follow the order of a run: before Ray starts, generation,
    training.
    """

    normaliser: ClassVar[Literal["group", "centre", "none"]] = (
        "group"  # (r - mean)/std of the group; r - mean; or r
    )
    flags: ClassVar[dict[str, str]] = {}
    """Defaults of OpenRLHF's flags that the objective needs, by name without dashes; the command line wins."""
    scores_steps: bool = False  # whether the policy has to score the answer after every step
    reads_states: bool = False
    """Whether the policy's hidden states at the ends of steps are needed, of every response (`Rollout.states`)."""
    continues: ClassVar[Literal["no", "grade", "join"]] = "no"
    """Whether responses have `continuations`, which are only graded (`Rollout.probes`) or join the group."""
    boxes_answers: ClassVar[bool] = False
    """Whether it asks for a boxed answer, looks for one, or looks for the reference answer in a thought."""
    needs_all_groups: bool = (
        True  # whether groups teach something that dynamic filtering drops: all correct or wrong
    )
    reshapes_responses: ClassVar[bool] = (
        False  # whether tokens are forced, deleted or joined, unlike those sampled
    )
    rewrites_evaluation: ClassVar[bool] = (
        False  # whether `rewrite_problem` also writes the evaluation's rows
    )
    remembers_batches: ClassVar[bool] = False
    """Whether `rewards` changes the objective's state, so that batches must come one after the other."""
    state: ClassVar[tuple[str, ...]] = ()  # the attributes that a checkpoint holds, as plain values
    outcome_weight: float = 1.0
    process_weight: float = 1.0
    critic: Any = None
    """What learns from batches in `token_advantages`, with `state_dict` and `load_state_dict` for checkpoints.

    It changes nothing in the sampling: in an asynchronous run it stays with the training."""
    predicted_tokens_left: Sequence[Sequence[float]] | None = None
    """Tokens predicted to be left at each state of each response of the last batch, for the table of rollouts."""
    Settings: ClassVar[type[FlagSettings]] = FlagSettings
    """The attributes declared by `setting(...)`, here and in base classes: each a flag `--swap.<objective>.<name>`."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.reshapes_responses |= cls.continues == "join"
        hints, own = get_type_hints(cls, include_extras=True), vars(cls).items()
        fields: Any = {
            name: (hints[name], value) for name, value in own if isinstance(value, FieldInfo)
        }
        cls.Settings = create_model("Settings", __base__=cls.Settings, **fields)

    def __init__(self, config: SwapConfig) -> None:
        """Sets the settings from `config.options`; raises ConfigError for an unknown name or a bad
        value.
        """
        self.config = config
        self.name = short_name(config.objective)
        for name, value in self.Settings(f"swap.{self.name}", **config.options):
            setattr(self, name, value)
        self.coefficients: Coefficients = plain_coefficients(config)
        """What `Batch.signals` is computed with."""
        self.step = 0
        """Batches sampled so far; in `rewards` and `token_advantages` the batch itself is counted."""

    @property
    def reads_answers(self) -> bool:
        """Whether it needs reference answers that a response could state, which unit tests are not."""
        return self.scores_steps or self.boxes_answers

    def check(self, args: SimpleNamespace) -> None:
        """Raise ConfigError for settings that cannot work with OpenRLHF's `args`."""

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """The user's turn of a row of the data set. The same row must give the same text in every
        run.
        """
        return problem

    def check_prompts(self, prompts: Iterable[str]) -> None:
        """Raise DataError for prompts, as the chat template renders them, that cannot be trained
        on.
        """

    def eval_prompt(self, prompt: str) -> str:
        """What an evaluation during the training asks, instead of a prompt as the chat template
        renders it.
        """
        return prompt

    def monitor(self) -> tuple[int, int] | None:
        """How many training prompts to sample before the next step, and how many responses to each;
        None for none.
        """
        return None

    def observe_monitor(self, batch: Batch) -> None:
        """Look at what `monitor` asked for."""

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """How to sample the `count` responses to a prompt."""
        return [SamplingRequest(prompt, count, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """What to generate from a response of the engine, by `continues`.

        Those that join come after the group's responses, and with them fill it; their metadata has
        `kept`.
        """
        return []

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """The response to train on instead of the sampled one, and what to remember of it in
        `metadata`.
        """
        return rollout

    def correct(self, batch: Batch) -> Tensor:
        """(G, N) bool, what counts as correct.

        The grader also finds a box in a thought that never closes, and in a response that the token
        limit cut off: an objective that accepts neither says so here.
        """
        return batch.correct

    def filter_scores(self, batch: Batch) -> Tensor:
        """(G, N) float64: dynamic filtering keeps the groups whose mean lies within its range, the
        ends excluded.

        The grader's rewards, and 0 for a response that does not count as correct. Must not change
        the state.
        """
        return torch.where(batch.correct & ~self.correct(batch), 0.0, batch.rewards)

    def rewards(self, batch: Batch) -> Tensor:
        """(G, N) float64 scalar rewards."""
        return self.filter_scores(batch)

    def token_advantages(self, batch: Batch) -> Tensor | None:
        """(G, N, A) what is added to each token's normalised outcome, times `process_weight`; None
        for nothing.
        """
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers worth a curve, under `swap/`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state by name; in an asynchronous run every batch brings the one it was sampled with."""
        return {name: copy(getattr(self, name)) for name in self.state}

    def resume(self, step: int, state: Mapping[str, Any] | None = None) -> None:
        """Go on after a step, with the state of a checkpoint or a batch where there is one."""
        self.step = step
        for name, value in (state or {}).items():
            setattr(self, name, value)


def evaluate(objective: Objective, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """`rewards` and `token_advantages` of a batch; ObjectiveError for another shape, or a number
    that is not finite.

    What stands after the end of a response reaches no update, so it may be anything.
    """
    rewards = objective.rewards(batch)
    _check(objective, "rewards", rewards, torch.ones_like(batch.correct))
    values = objective.token_advantages(batch)
    if values is not None:
        is_token = torch.arange(int(batch.lengths.max())) < batch.lengths.unsqueeze(-1)
        _check(objective, "token_advantages", values, is_token)
    return rewards, values


def _check(objective: Objective, method: str, values: Any, counts: Tensor) -> None:
    """The values must have the shape of `counts`, and be finite where it is True."""
    shape, found = (
        tuple(counts.shape),
        tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__,
    )
    if found != shape:
        axes = ("groups", "responses a group", "tokens of the longest response")[: len(shape)]
        fault = f"{found}; expected a tensor of shape {shape}, ({', '.join(axes)})"
    elif (
        wrong := (~values.float().isfinite() & counts).nonzero().tolist()
    ):  # 1e308 is finite in float64 only
        fault = f"{values[tuple(wrong[0])].item()} at {tuple(wrong[0])}; expected finite numbers"
    else:
        return
    where, name = f"{type(objective).__qualname__}.{method}", objective.config.objective
    raise ObjectiveError(
        f"--swap.objective is {name}, whose `{method}` returned {fault}: fix {where}"
    )
