"""Whether the grader and the objective fit each other: what a step's score needs, and what a reward may be."""

from __future__ import annotations

from types import SimpleNamespace

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.defaults import REWARD_FILE
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rewards.verifiers import MATH, find_verifier


def check_grader(args: SimpleNamespace, config: SwapConfig, run: RunConfig) -> None:
    """Refuse a grader that does not exist, or whose tasks the objective cannot be trained on.

    Raises:
        ConfigError: with the objectives that work.
    """
    if run.grader == MATH:
        return
    verifier = find_verifier(run.grader)
    if args.reward.remote_url != str(REWARD_FILE):
        raise ConfigError(
            f"--swap.grader is {run.grader}, but --reward.remote_url {args.reward.remote_url} gives the rewards: "
            "leave one of them out"
        )
    if not verifier.answer_is_text and build(config).reads_answers:
        able = [name for name in OBJECTIVES if not build(SwapConfig(objective=name)).reads_answers]
        raise ConfigError(
            f"--swap.objective is {config.objective}, which needs an answer text, and --swap.grader {run.grader} has "
            f"none; use one of: {', '.join(able)}"
        )
