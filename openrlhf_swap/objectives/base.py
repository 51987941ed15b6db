"""The objective: what a run rewards, and what it changes on the way there.

Shapes: G groups, N responses a group, A tokens of the longest response.
"""

import random
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, Literal, get_type_hints

import torch
from pydantic import BeforeValidator, Field, create_model
from pydantic.fields import FieldInfo
from torch import Tensor

from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, ENTROPY, NEED
from openrlhf_swap.config import FlagSettings, SwapConfig, setting, short_name
from openrlhf_swap.errors import ConfigError, ObjectiveError
from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT, NO_MARK
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout

__all__ = [  # what a file with an objective needs, the names that other modules define included
    "Batch",
    "Continuation",
    "Numbers",
    "Objective",
    "ResponseReader",
    "Rollout",
    "SamplingRequest",
    "evaluate",
    "numbers",
    "setting",
    "split_numbers",
]


def split_numbers(value: Any) -> Any:
    """The numbers of a text such as 10,30,50; an empty text has none."""
    if not isinstance(value, str):
        return value
    return [word for word in value.split(",") if word]


Numbers = Annotated[tuple[Annotated[int, Field(ge=0)], ...], BeforeValidator(split_numbers)]
"""The type of a setting whose flag takes text such as 10,30,50."""


def numbers(default: str, doc: str) -> Any:
    """Declare a setting of one number or more."""
    remedy = f"use numbers such as {default}"
    return setting(default, doc, remedy, min_length=1, validate_default=True)


@dataclass(frozen=True)
class SamplingRequest:
    """A part of a group: `count` responses to one prompt.

    Attributes:
        prompt: as the chat template renders it.
        forced: text with which every response starts. It counts as generated and is trained on.
        chance: the probability that the policy chose this part of the group, for a policy that
            should learn to choose. If the part's first token is forced, its probability counts as
            `chance`; otherwise the policy's own probability of it is multiplied by `chance`.
    """

    prompt: str
    count: int
    max_new_tokens: int
    forced: str = ""
    chance: float | None = None


@dataclass(frozen=True)
class Continuation:
    """A second generation, `count` times, from a beginning of a response and a text after it.

    Attributes:
        kept: tokens of the response that are its beginning.
        suffix: the text after them, which counts as part of the response.
        max_new_tokens: at most so many tokens follow; where the context is full fewer, but one.
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
    training. The first line of a subclass's docstring is its equation, which
    `train --help --swap.objective NAME` prints.
    """

    normaliser: ClassVar[Literal["group", "centre", "none"]] = "group"
    """The function `normalise`: (r - mean)/std of the group; r - mean; or r."""
    flags: ClassVar[dict[str, Any]] = {}
    """Defaults of OpenRLHF's flags that the objective needs, by name without dashes."""
    scores_steps: bool = False
    """Whether the policy has to score the answer after every step."""
    reads_entropies: bool = False
    """Whether the mean token entropy of every step is needed, of every response."""
    reads_logprobs: ClassVar[bool] = False
    """Whether it reads `Rollout.logprobs`; a class of your own is given them in any case."""
    reads_turn_rewards: bool = False
    """Whether an agent's rewards of single turns are read, of every response."""
    continues: ClassVar[bool] = False
    """Whether beginnings of a response are graded by `continuations` (`Rollout.probes`)."""
    boxes_answers: ClassVar[bool] = False
    """Whether it asks for a box, looks for one, or looks for the answer in a thought."""
    needs_marks: ClassVar[bool] = False
    """Whether it needs the marks of a thought: it writes, counts or rewards them."""
    needs_all_groups: bool = True
    """Whether groups that are all correct or all wrong, which a filter drops, teach something."""
    reshapes_responses: ClassVar[bool] = False
    """Whether tokens are forced or deleted, so that vLLM did not sample the response."""
    limits_thoughts: ClassVar[bool] = False
    """Whether it sets budgets or limits itself, or chooses whether there is a thought at all."""
    rewrites_evaluation: ClassVar[bool] = False
    """Whether `rewrite_problem` also writes the evaluation's rows."""
    needs_verdicts: ClassVar[bool] = True
    """Whether it learns from what the grader says, so that without one it learns nothing."""
    penalises_long_wrong: ClassVar[bool] = False
    """Whether a longer wrong response earns less than a shorter one."""
    remembers_batches: ClassVar[bool] = False
    """Whether `rewards` changes the state, so that batches must come one after the other."""
    state: ClassVar[tuple[str, ...]] = ()
    """The attributes that a checkpoint holds, as plain values."""
    no_numbers: ClassVar[str] = ""
    """Why `tests/conformance` has no numbers of the authors, where it has none."""
    outcome_weight: float = 1.0
    process_weight: float = 1.0
    Settings: ClassVar[type[FlagSettings]] = FlagSettings
    """The attributes declared by `setting(...)`: each a flag `--swap.<objective>.<name>`."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if cls.continues:
            # Continuations begin with what the engine has seen. OpenRLHF empties the cache when
            # it brings new weights.
            cls.flags = {"vllm.enable_prefix_caching": True, **cls.flags}
        hints = get_type_hints(cls, include_extras=True)
        declared = {name: spec for name, spec in vars(cls).items() if isinstance(spec, FieldInfo)}
        fields: Any = {name: (hints[name], spec) for name, spec in declared.items()}
        cls.Settings = create_model("Settings", __base__=cls.Settings, **fields)

    def __init__(self, config: SwapConfig) -> None:
        """Set the settings from `config.options`.

        Raises ConfigError for an unknown name, a bad value, or a model without the marks that the
        objective needs.
        """
        self.config = config
        self.name = short_name(config.objective)
        if self.needs_marks and config.end_of_thought == NO_MARK:
            raise ConfigError(
                f"--swap.objective is {config.objective}, which needs the marks of a thought, and "
                "the model's chat template has none: name what the model was taught, such as "
                f"--swap.end_of_thought '{END_OF_THOUGHT}', or use another objective"
            )
        for name, value in self.Settings(f"swap.{self.name}", **config.options):
            setattr(self, name, value)
        self.coefficients: Coefficients = config.coefficients()
        """The numbers of the step arithmetic of `Batch.credit`."""
        self.step = 0
        """Batches sampled so far; `rewards` and `token_advantages` count the batch itself."""

    @property
    def wanted_signals(self) -> tuple[str, ...]:
        """The names of the signals by step that the policy has to give (`algorithm.signals`)."""
        wanted = {
            ANSWER_LOGPROBS.name: self.scores_steps,
            NEED.name: self.scores_steps and self.coefficients.rewards_need,
            ENTROPY.name: self.reads_entropies,
        }
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    def check(self, args: SimpleNamespace) -> None:
        """Raise ConfigError for settings that cannot work with OpenRLHF's `args`."""

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """The user's turn of a row of the data set: the same row gives the same text in any run."""
        return problem

    def check_prompts(self, prompts: Iterable[str]) -> None:
        """Raise DataError for rendered prompts that cannot be trained on."""

    def eval_prompt(self, prompt: str) -> str:
        """The prompt of an evaluation during the training, from a rendered prompt."""
        return prompt

    def monitor(self) -> tuple[int, int] | None:
        """The number of training prompts to sample before the next step, and of samples of each."""
        return None

    def observe_monitor(self, batch: Batch) -> None:
        """Change the state by the graded samples of the prompts that `monitor` asked for.

        `batch` has a group for each prompt, (G, N), before the next training step is sampled.
        """

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """Split the `count` responses to a prompt into parts that are sampled alike."""
        return [SamplingRequest(prompt, count, max_new_tokens)]

    def continuations(self, rollout: Rollout, reader: ResponseReader) -> list[Continuation]:
        """The continuations of beginnings of an engine's response, if `continues`."""
        return []

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """The response to train on; numbers about it may be kept in its `metadata`."""
        return rollout

    def correct(self, batch: Batch) -> Tensor:
        """(G, N) bool, what counts as correct.

        The grader also finds a box in a thought that never closes, and in a response that the token
        limit cut off: an objective that accepts neither says so here.
        """
        return batch.correct

    def filter_scores(self, batch: Batch) -> Tensor:
        """(G, N) float64, what dynamic filtering looks at instead of rewards.

        The filter keeps the groups whose mean lies within its range, the ends excluded. The
        scores are the grader's rewards, and 0 for a response that does not count as correct. They
        must not change the state.
        """
        return torch.where(batch.correct & ~self.correct(batch), 0.0, batch.rewards)

    def rewards(self, batch: Batch) -> Tensor:
        """(G, N) float64 scalar rewards."""
        return self.filter_scores(batch)

    def token_advantages(self, batch: Batch) -> Tensor | None:
        """(G, N, A) what is added to each token's normalised outcome, or None for nothing."""
        return None

    def metrics(self) -> dict[str, float]:
        """Numbers worth a curve, by their whole names, which begin with `swap/`."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state by name; in an asynchronous run a batch brings the one it was sampled with."""
        return {name: copy(getattr(self, name)) for name in self.state}

    def resume(self, step: int, state: Mapping[str, Any] | None = None) -> None:
        """Go on after a step, with the state of a checkpoint or a batch where there is one."""
        self.step = step
        for name, value in (state or {}).items():
            setattr(self, name, value)


@dataclass(frozen=True)
class JudgedBatch:
    """The rewards and token advantages that an objective gives a batch.

    Attributes:
        rewards: (G, N) float64.
        token_advantages: (G, N, A) what is added to each token's normalised outcome, or None.
    """

    rewards: Tensor
    token_advantages: Tensor | None


def evaluate(objective: Objective, batch: Batch) -> JudgedBatch:
    """Ask an objective for the rewards and token advantages of a batch.

    Raises ObjectiveError for another shape, or a number that is not finite. What stands after the
    end of a response reaches no update, so it may be anything.
    """
    rewards = objective.rewards(batch)
    _check(objective, "rewards", rewards, torch.ones_like(batch.correct))
    values = objective.token_advantages(batch)
    if values is not None:
        longest = int(batch.lengths.max())
        is_token = torch.arange(longest) < batch.lengths.unsqueeze(-1)
        _check(objective, "token_advantages", values, is_token)
    return JudgedBatch(rewards, values)


def _check(objective: Objective, method: str, values: Any, counts: Tensor) -> None:
    """The values must have the shape of `counts`, and be finite where it is True."""
    fault = _shape_fault(values, counts) or _value_fault(values, counts)
    if fault:
        where = f"{type(objective).__qualname__}.{method}"
        raise ObjectiveError(
            f"--swap.objective is {objective.config.objective}, whose `{method}` returned "
            f"{fault}: fix {where}"
        )


def _shape_fault(values: Any, counts: Tensor) -> str:
    shape = tuple(counts.shape)
    found = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
    if found == shape:
        return ""
    axes = ("groups", "responses a group", "tokens of the longest response")[: len(shape)]
    return f"{found}; expected a tensor of shape {shape}, ({', '.join(axes)})"


def _value_fault(values: Tensor, counts: Tensor) -> str:
    is_finite = values.float().isfinite()  # 1e308 is finite in float64 only
    wrong = (~is_finite & counts).nonzero()
    if not len(wrong):
        return ""
    place = tuple(wrong[0].tolist())
    return f"{values[place].item()} at {place}; expected finite numbers"
