"""The arms and sizes of settings.yaml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from openrlhf_swap.command import did_you_mean
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards.answers import SUFFIX

SETTINGS = Path(__file__).with_suffix(".yaml")
ROOT = Path(__file__).parents[2]
BASE = "base"  # the untrained model, in the place of an arm's name
GSM8K = "gsm8k"
ADDITIONS = "additions"


@dataclass(frozen=True)
class Arm:
    """One way to train.

    Attributes:
        flags: of `openrlhf-swap train`, by name without dashes.
        limit_percentile: if given, responses are limited to this percentile of the lengths, in
            tokens, of the base's responses to the first held-out problems.
    """

    name: str
    flags: Mapping[str, Any]
    limit_percentile: float | None = None


@dataclass(frozen=True)
class Run:
    """The training of an arm with a seed, or the base, which has none."""

    arm: str
    seed: int | None = None

    @property
    def name(self) -> str:
        """The name of its files."""
        return self.arm if self.seed is None else f"{self.arm}_{self.seed}"


@dataclass(frozen=True)
class Size:
    """How large everything is.

    Attributes:
        model: hub id or folder of the base; a relative folder lies in the checkout.
        held_out: sets of held-out problems by name, with the number of problems.
        arms: the arms, in the order in which their trainings begin.
        seeds: of the trainings; all arms of a seed begin before the next seed's.
        slots: trainings at a time.
        train_seconds: what a training is expected to take, until one has ended.
        evaluate_seconds: what an evaluation is expected to take, until one has ended.
        presets: flag files below the checkout for `openrlhf-swap train --config`.
        flags: flags of `openrlhf-swap train`, which win over the presets.
        evaluation: flags of `openrlhf-swap eval run`.
        task: where the problems come from, `gsm8k` or `additions`.
        suffix: text after each problem, in training and in evaluation.
    """

    model: str
    held_out: Mapping[str, int]
    arms: Sequence[Arm]
    seeds: Sequence[int]
    slots: int
    train_seconds: float
    evaluate_seconds: float
    presets: Sequence[str]
    flags: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    task: str = GSM8K
    suffix: str = SUFFIX
    held_out_seed: int = field(default=0, kw_only=True)

    @property
    def prompts(self) -> int:
        """The training problems of a run."""
        return int(self.flags["swap.training_steps"] * self.flags["rollout.batch_size"])

    def runs(self) -> list[Run]:
        """All trainings, seed after seed, so that whatever is finished is a comparison."""
        return [Run(arm.name, seed) for seed, arm in product(self.seeds, self.arms)]

    def arm_of(self, run: Run) -> Arm:
        """The arm of a training."""
        return next(arm for arm in self.arms if arm.name == run.arm)


def read_size(name: str, file: Path = SETTINGS) -> Size:
    """The size of this name in a file of settings; raises ConfigError for an unknown one."""
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    if name not in content["sizes"]:
        raise ConfigError(f"--size is {name!r}; {did_you_mean(name, content['sizes'])}")
    about = dict(content["sizes"][name])
    arms = [Arm(arm, **content["arms"][arm]) for arm in about.pop("arms")]
    return Size(arms=arms, held_out_seed=content["held_out_seed"], **about)
