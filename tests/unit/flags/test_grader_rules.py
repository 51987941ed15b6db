"""Graders and objectives that do not fit each other are refused before anything starts."""

from types import SimpleNamespace

import pytest

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.flags.defaults import REWARD_FILE
from openrlhf_swap.flags.grader_rules import check_grader


def check(objective, grader, reward=REWARD_FILE):
    args = SimpleNamespace(reward=SimpleNamespace(remote_url=str(reward)))
    check_grader(args, SwapConfig(objective=objective), RunConfig(grader=grader))


@pytest.mark.parametrize(
    "objective", ["swap", "vsrm_scores", "lc_r1", "step_only", "autothink", "hbpo", "grpo_lead", "short_rl"]
)
@pytest.mark.parametrize("grader", ["unit_tests", "support.verifiers:reads_rules"])
def test_objectives_that_read_answers_need_some(objective, grader):
    with pytest.raises(ConfigError) as raised:
        check(objective, grader)
    start, _, able = str(raised.value).partition("use one of: ")
    assert start.startswith(f"--swap.objective is {objective}, which needs an answer text, and --swap.grader {grader}")
    assert {"grpo", "dler", "kimi", "gr3", "arlcp", "on_policy_sft"} <= set(able.split(", "))
    assert not {"swap", "vsrm", "laser", "lc_r1", "step_only", "hbpo", "grpo_lead", "short_rl"} & set(able.split(", "))


def test_others_do_not():
    check("grpo", "unit_tests")
    check("swap", "multiple_choice")
    check("swap", "regex:(.+)")
    check("swap", "math", reward="own.py")


def test_two_sources_of_rewards_are_one_too_many():
    with pytest.raises(ConfigError, match=r"--swap.grader is multiple_choice, but --reward.remote_url own.py gives"):
        check("grpo", "multiple_choice", reward="own.py")
