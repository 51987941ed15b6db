import dataclasses
import json
import math
import subprocess
import sys

import pytest

from openrlhf_swap.algorithm.recipe import VARIANTS, recipe
from openrlhf_swap.config import SwapConfig, parse_swap_arguments
from openrlhf_swap.errors import ConfigError


def test_defaults_are_the_papers():
    config = SwapConfig()
    assert (config.step_tokens, config.max_steps) == (350, 25)
    assert (config.length_coef, config.outcome_weight, config.process_weight) == (1.0, 1.0, 0.3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("length_coef", -1.0),
        ("temperature", 0.0),
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("process_weight", math.inf),
        ("outcome_weight", math.nan),
        ("step_tokens", 0),
        ("step_tokens", 3.5),
        ("max_steps", 0),
        ("eps", 0.0),
        ("newline_patience", 0.5),
        ("objective", "swop"),
        ("scoring", "fast"),
        ("rollouts_every", -1),
        ("static_penalty", -0.1),
    ],
)
def test_a_bad_value_names_flag_value_and_remedy(field, value):
    with pytest.raises(ConfigError, match=rf"--swap\.{field} is .*; .*use"):
        SwapConfig(**{field: value})


def test_step_only_without_a_process_weight_would_train_nothing():
    with pytest.raises(ConfigError, match="process_weight"):
        SwapConfig(objective="step_only", process_weight=0.0)


def test_config_is_frozen_and_plain():
    config = SwapConfig(temperature=1)
    assert isinstance(config.temperature, float)
    json.dumps(config.to_dict())
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.temperature = 2.0


def test_flags_are_taken_out_of_a_command_line():
    config, rest = parse_swap_arguments(
        ["--a.b", "1", "--swap.temperature", "inf", "--swap.close_template=</think>\\nx", "--c"]
    )
    assert config.temperature == math.inf
    assert config.close_template == "</think>\nx"
    assert rest == ["--a.b", "1", "--c"]


def test_a_misspelt_flag_is_corrected():
    with pytest.raises(ConfigError, match=r"unknown flag --swap\.lenght_coef; did you mean --swap\.length_coef\?"):
        parse_swap_arguments(["--swap.lenght_coef", "2"])


def test_a_flag_of_the_wrong_type_is_named():
    with pytest.raises(ConfigError, match=r"--swap\.length_coef: invalid float value: 'much'"):
        parse_swap_arguments(["--swap.length_coef", "much"])


def test_every_objective_has_a_recipe():
    for objective in VARIANTS:
        numbers = recipe(SwapConfig(objective=objective))
        assert numbers.needs_scores == (objective not in ("grpo", "outcome_only"))


def test_the_package_and_its_config_import_without_torch():
    code = (
        "import sys, openrlhf_swap, openrlhf_swap.config, openrlhf_swap.rewards.worker; print('torch' in sys.modules)"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "False"


def test_imports_point_down():
    """`algorithm`, `scoring` and `rewards` must stay free of Ray, vLLM, DeepSpeed and OpenRLHF."""
    code = (
        "import sys\n"
        "import openrlhf_swap.algorithm.advantages, openrlhf_swap.rewards, openrlhf_swap.scoring.shared_prefix\n"
        "import openrlhf_swap.scoring.reasoning\n"
        "print([m for m in ('ray', 'vllm', 'deepspeed', 'openrlhf') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip().splitlines()[-1] == "[]"
