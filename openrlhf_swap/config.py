"""The settings of SWAP and of a run, each declared once: type, default, help, range and remedy."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    field_serializer,
    field_validator,
)
from pydantic.fields import FieldInfo
from typing_extensions import Self  # typing has it from Python 3.11 on

from openrlhf_swap.algorithm.coefficients import Coefficients, Tau
from openrlhf_swap.errors import ConfigError

ENDLESS = 10**12  # tokens
AUTO = "auto"  # take the marks of the thought from the model's chat template


def setting(default: Any, doc: str, remedy: str = "", is_path: bool = False, **limits: Any) -> Any:
    """Declare a setting.

    Args:
        default: its value where none is given.
        doc: the help of its flag, and its row in docs/use/settings.md.
        remedy: what to use instead of an invalid value, where pydantic's message does not say it.
        is_path: whether it names a file; other processes read an absolute path.
        limits: pydantic's: ge, gt, le, lt, allow_inf_nan, min_length.
    """
    extra: Any = {"remedy": remedy, "is_path": is_path}
    return Field(default, description=doc, json_schema_extra=extra, **limits)


class FlagSettings(BaseModel):
    """Settings that are also flags: immutable, built from Python values or a command line's text.

    Raises ConfigError for an unknown name, or a value that its type or range excludes, with the
    flag and the remedy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, prefix: str = "swap", /, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise self._explained(error, prefix) from None

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with some values changed; it is validated like the original."""
        return type(self)(**{**dict(self), **changes})

    @classmethod
    def declared(cls) -> dict[str, FieldInfo]:
        """The settings that have a flag, by name."""
        return {name: spec for name, spec in cls.model_fields.items() if spec.description}

    @classmethod
    def _explained(cls, error: ValidationError, prefix: str) -> ConfigError:
        first = error.errors()[0]
        if not first["loc"]:  # a rule about several settings, with its own message
            return ConfigError(str(first["ctx"]["error"]))
        name = str(first["loc"][0])
        flag = f"--{prefix}.{name}"
        if first["type"] == "extra_forbidden":
            owner = prefix.rpartition(".")[2]
            known = ", ".join(cls.declared()) or "none"
            hint = symbol_remedy(name) if prefix == "swap" else ""
            return ConfigError(f"unknown flag {flag}; {hint or f'{owner} has: {known}'}")
        value = repr(first["input"])
        remedy = extra(cls.model_fields[name]).get("remedy")
        if remedy:
            return ConfigError(f"{flag} is {value}; {remedy}")
        rule = first["msg"].partition(" ")[2]  # "Input should be ..."
        return ConfigError(f"{flag} is {value}, which {rule}")


def extra(spec: FieldInfo) -> dict[str, Any]:
    """The remedy and `is_path` of a setting."""
    values = spec.json_schema_extra
    return values if isinstance(values, dict) else {}


def type_name(spec: FieldInfo) -> str:
    """The type of a setting, as its flag shows it: int, float, str or bool."""
    kind = spec.annotation
    while get_args(kind):
        kind = get_args(kind)[0]
    return kind.__name__ if isinstance(kind, type) else type(kind).__name__


def short_name(objective: str) -> str:
    """The name of an objective in flags and metrics: a class is called by its own name."""
    return objective.rpartition(":")[2]


# The paper's symbols, and ours, as the names of the settings that hold them.
SYMBOLS = {
    "M": "step_tokens",
    "K": "max_steps",
    "lambda": "length_coef",
    "beta": "outcome_weight",
    "theta": "process_weight",
    "gamma": "step_discount",
}


def symbol_remedy(name: str) -> str:
    """What to use in place of a symbol as a setting's name; empty for another name.

    Python reserves `lambda`, so `lambda_` and `lam` are taken for it, too.
    """
    symbol = {"lam": "lambda", "m": "M", "k": "K"}.get(name, name.rstrip("_"))
    setting_name = SYMBOLS.get(symbol)
    return f"{symbol} is --swap.{setting_name}" if setting_name else ""


_WEIGHT: Any = {"ge": 0, "allow_inf_nan": False}


class SwapConfig(FlagSettings):
    """Settings of the objective.

    Each is an argument by name, and also a flag `--swap.<name>` (docs/use/settings.md describes
    them). Defaults are the paper's where it gives one: M, K, lambda, beta, theta. Immutable:
    `replaced` returns a changed copy.

    Raises:
        ConfigError: for an unknown name, or a value that its type or range excludes.
    """

    objective: str = setting(
        "swap", "a name that --list-objectives prints, or a class of your own as module:Class"
    )
    step_tokens: int = setting(
        350, "M: tokens of a step before it is extended to the next newline", ge=1
    )
    max_steps: int = setting(
        25, "K: maximum number of steps in a response; longer responses get longer steps", ge=1
    )
    steps: Literal["tokens", "turns"] = setting(
        "tokens",
        "what a step is: tokens (M of them, extended to the next newline), or turns: each turn "
        "of an agent is a step (not in the paper)",
    )
    newline_patience: float = setting(
        2.0,
        "if no newline comes, cut a step at the last end of a word within this many times M tokens "
        "(not in the paper)",
        ge=1,
        allow_inf_nan=False,
    )
    length_coef: float = setting(
        1.0, "lambda: penalty mass at twice the target length; 0: no penalty", **_WEIGHT
    )
    tau: Tau = setting(
        1.0,
        "tau, in nats, or in standard deviations of a group's gains, such as 0.5sd: a small "
        "value concentrates the penalty on the steps with the least gain, inf spreads it "
        "evenly (no value in the paper)",
        "use a positive number of nats, a number of deviations such as 0.5sd, or inf for a "
        "uniform penalty",
        validate_default=True,
    )
    weights_from: Literal["local", "monotone"] = setting(
        "local",
        "the gains by which steps share the penalty: local (the paper's g), so that a step that "
        "lowered the answer's probability has the largest share; monotone (Delta), so that all "
        "steps without progress have equal shares (not in the paper)",
        "use local or monotone",
    )
    outcome_weight: float = setting(
        1.0, "beta: weight of the group-normalised outcome advantage", **_WEIGHT
    )
    process_weight: float = setting(
        0.3, "theta: weight of correct responses' process advantage; 0 is GRPO", **_WEIGHT
    )
    step_price: Literal["steps", "weights"] = setting(
        "steps",
        "how steps share the baseline, the mean step reward that normalisation subtracts: steps "
        "(the paper's), equally; weights, by the penalty's weights (not in the paper)",
        "use steps or weights",
    )
    step_noise: float = setting(
        0.0,
        "lower bound, in nats, of the deviation that step rewards are divided by, so that "
        "noise in the scores counts less than real gains; 0 is the paper's, 0.02 the noise of "
        "bfloat16",
        **_WEIGHT,
    )
    step_discount: float = setting(
        1.0,
        "gamma: the discount per step on the rewards of later steps: with 1 (the paper's) a token "
        "gets the sum of its own and all later steps' rewards, with 0 its own step's alone (ours)",
        "use a number from 0 to 1",
        ge=0,
        le=1,
    )
    turn_weight: float = setting(
        0.0,
        "weight, within theta, of the rewards that an agent's environment gives for each turn, "
        "discounted by step_discount, in correct responses and others; 0: their sum alone counts, "
        "as in GRPO (ours)",
        **_WEIGHT,
    )
    step_reward: Literal["gain", "need"] = setting(
        "gain",
        "a step's reward: gain (the paper's), its gain less its share of the penalty; need, its "
        "gain plus what later steps lose without it, in nats, without penalty, weights and tau "
        "(ours)",
        "use gain or need",
    )
    need_window: int = setting(
        4,
        "with step_reward need, the later steps that are read again without a step; 0: all of "
        "them, at three times the cost of 4",
        ge=0,
    )
    need_every: int = setting(
        1,
        "with step_reward need, hide one step out of this many, different ones in each response; a "
        "step that is not hidden has no reward",
        ge=1,
    )
    static_penalty: float = setting(
        0.1,
        "constant that static_penalty subtracts from every normalised step reward (no value in "
        "the paper)",
        **_WEIGHT,
    )
    eps: float = setting(
        1e-6, "added to deviations; one below it counts as zero (no value in the paper)", gt=0, lt=1
    )
    start_of_thought: str = setting(
        AUTO,
        "text that opens the thought; auto: from the model's chat template; empty: none",
    )
    end_of_thought: str = setting(
        AUTO,
        "text that closes the thought: steps end before it, answers are graded after it; auto: "
        "from the template, too; empty: none, the reasoning ends where the answer is stated",
    )
    close_template: str = setting(
        AUTO,
        "text that ends the thought and opens the answer when a prefix is scored; \\n is a "
        "newline; auto: from the model's family (not in the paper)",
    )
    options: dict[str, str] = Field(default_factory=dict)
    """The objective's own settings by name, as text: the flags `--swap.<objective>.<name>`."""

    @property
    def segmentation(self) -> tuple[int, int, float]:
        """M, K and the patience of `segment_steps`; M is endless where turns are steps."""
        step_tokens = ENDLESS if self.steps == "turns" else self.step_tokens
        return step_tokens, self.max_steps, self.newline_patience

    def coefficients(self) -> Coefficients:
        """The numbers of the step arithmetic, as the objective uses them."""
        numbers = Coefficients(
            length_coef=self.length_coef,
            tau=self.tau,
            weights_from=self.weights_from,
            outcome_weight=self.outcome_weight,
            process_weight=self.process_weight,
            step_price=self.step_price,
            step_reward=self.step_reward,
            step_discount=self.step_discount,
            turn_weight=self.turn_weight,
            step_noise=self.step_noise,
            step_constant=0.0,
            penalises_outcome=False,
            eps=self.eps,
        )
        if self.objective not in ABLATION:
            return numbers
        return replace(numbers, **ABLATION[self.objective](self))

    @field_validator("tau", mode="before")
    @classmethod
    def _read_tau(cls, value: Tau | float | str) -> Tau:
        return Tau.parse(value)

    @field_serializer("tau")
    def _plain_tau(self, tau: Tau) -> float | str:
        return tau.plain

    def model_post_init(self, _: Any) -> None:
        if self.objective == "step_only" and self.process_weight == 0:
            raise ConfigError(
                "--swap.process_weight is 0.0; step_only has no other signal: use a value above 0"
            )


ABLATION: dict[str, Callable[[SwapConfig], dict[str, Any]]] = {
    "swap": lambda config: {},
    "grpo": lambda config: {"process_weight": 0.0},
    "outcome_only": lambda config: {"process_weight": 0.0, "penalises_outcome": True},
    "step_only": lambda config: {"outcome_weight": 0.0},
    "no_penalty": lambda config: {"length_coef": 0.0},
    "static_penalty": lambda config: {"length_coef": 0.0, "step_constant": config.static_penalty},
    "uniform_penalty": lambda config: {"tau": Tau(math.inf)},
}
"""Changes of the coefficients by each row of the paper's ablation."""


class RunConfig(FlagSettings):
    """Settings of a run: what it monitors, writes and allows."""

    grader: str = setting(
        "math",
        "what judges a response: math (math-verify), multiple_choice, regex:PATTERN, none, or a "
        "function of your own as module:function",
        min_length=1,
    )
    scoring: Literal["shared_prefix", "per_prefix"] = setting(
        "shared_prefix",
        "shared_prefix: score all prefixes in one forward; per_prefix: one forward each (slow "
        "reference)",
    )
    logits_chunk: int = setting(
        1024,
        "tokens whose logits are held in memory at a time, on GPUs more where they fit and this is "
        "not given; 0 holds a whole micro-batch's, as OpenRLHF does",
        ge=0,
    )
    reuse_logprobs: bool = setting(
        False,
        "run no pass for log-probabilities where nothing reads them and a step has one update, "
        "which then compares with its own; a line at the start says whether it does",
    )
    engine_sequences: int = setting(
        0,
        "responses that a vLLM engine generates at a time; 0: all of a step, at most 1,024 "
        "(CPU: vLLM's 128)",
        ge=0,
    )
    training_steps: int = setting(
        0,
        "train this many steps, with as many passes over the data as they take; 0: as many as "
        "--train.num_episodes passes give",
        ge=0,
    )
    self_test_steps: int = setting(
        5, "stop if no process term reached an update in this many steps; 0: never", ge=0
    )
    max_skipped_steps: int = setting(
        5,
        "stop after this many consecutive steps without an update, because of a non-finite "
        "score, loss or gradient",
        ge=1,
    )
    generation_timeout: float = setting(
        3600.0,
        "stop if the rollout engines finish no prompt, or accept no weights, for this many "
        "seconds, or if a start, a pass, an update, a checkpoint or the export is not done in this "
        "time or an hour, whichever is longer; inf waits forever",
        gt=0,
    )
    rollouts_every: int = setting(
        10, "training steps between two tables of rollouts with their steps; 0: none", ge=0
    )
    rollouts_groups: int = setting(2, "groups in each of these tables", ge=1)
    tracker: str = setting(
        "",
        "a function of your own as module:function, which gets the number and the metrics of each "
        "step and evaluation, for a tracker beside TensorBoard and W&B",
    )
    recipe: str = setting(
        "",
        "name of a recipe, which sets every flag that an objective's authors set; --dry-run prints "
        "each with its source",
    )
    output_dir: str = setting(
        "outputs/swap",
        "folder for metrics.jsonl, train.log, rollouts/ and swap_config.json",
        "name a folder, or leave it out",
        min_length=1,
    )
    verbose: bool = setting(
        False, "print everything on the console, library output too, instead of to train.log"
    )
    trust_remote_code: bool = setting(
        False, "allow a model's own Python code, which OpenRLHF runs without asking"
    )

    keeps_products: bool = False
    """Whether an update recomputes all but products and attention; the plan sets it."""

    def total_steps(self, steps_a_pass: int, passes: int) -> int:
        """The training steps of a run, whose data give so many steps in each of `passes` passes."""
        return self.training_steps or steps_a_pass * passes
