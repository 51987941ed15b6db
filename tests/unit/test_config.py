import json
import math
import re

import pytest
from pydantic import ValidationError
from support.scripts import python

from openrlhf_swap.algorithm.coefficients import Tau
from openrlhf_swap.config import ABLATION, RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError


def test_defaults_are_the_papers():
    config = SwapConfig()
    assert config.step_tokens == 350
    assert config.max_steps == 25
    assert config.length_coef == config.outcome_weight == 1.0
    assert config.process_weight == 0.3


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("length_coef", -1.0),
        ("tau", 0.0),
        ("tau", "0sd"),
        ("tau", "infsd"),
        ("tau", "hot"),
        ("process_weight", math.inf),
        ("outcome_weight", math.nan),
        ("step_tokens", 0),
        ("step_tokens", 3.5),
        ("eps", 0.0),
        ("static_penalty", -0.1),
        ("step_tokens", "many"),
        ("scoring", "fast"),
        ("rollouts_every", -1),
    ],
)
def test_a_bad_value_names_flag_value_and_remedy(field, value):
    kind = SwapConfig if field in SwapConfig.model_fields else RunConfig
    message = rf"--swap\.{field} is {re.escape(repr(value))}(; use |, which should )"
    with pytest.raises(ConfigError, match=message):
        kind(**{field: value})


def test_step_only_without_a_process_weight_would_train_nothing():
    with pytest.raises(ConfigError, match="process_weight"):
        SwapConfig(objective="step_only", process_weight=0.0)


def test_config_is_frozen_and_plain():
    config = SwapConfig(tau=1)
    assert config.model_dump()["tau"] == 1.0
    json.dumps(config.model_dump())
    with pytest.raises(ValidationError, match="frozen"):
        config.tau = 2.0
    assert config.replaced(tau=2.0) == SwapConfig(tau=2)
    with pytest.raises(ConfigError, match=r"--swap\.tau is 0\.0; use a positive number of nats"):
        config.replaced(tau=0.0)


@pytest.mark.parametrize(
    ("text", "tau", "plain"),
    [
        ("0.5", Tau(0.5), 0.5),
        ("2", Tau(2.0), 2.0),
        ("0.5sd", Tau(0.5, in_deviations=True), "0.5sd"),
        ("inf", Tau(math.inf), math.inf),
    ],
)
def test_tau_has_nats_or_deviations(text, tau, plain):
    config = SwapConfig(tau=text)
    assert config.tau == config.coefficients().tau == tau
    written = json.loads(json.dumps(config.model_dump()))
    assert written["tau"] == plain
    assert SwapConfig(**written) == config


def test_every_row_of_the_ablation_has_coefficients():
    for objective in ABLATION:
        numbers = SwapConfig(objective=objective).coefficients()
        assert numbers.needs_scores == (objective not in ("grpo", "outcome_only"))


@pytest.mark.parametrize(
    ("settings", "chooses"),
    [
        ({}, True),
        ({"tau": "inf"}, False),
        ({"objective": "no_penalty"}, False),
        ({"objective": "no_penalty", "step_price": "weights"}, True),
        ({"objective": "uniform_penalty", "step_price": "weights"}, False),
        ({"step_reward": "need"}, False),
        ({"objective": "grpo"}, False),
    ],
)
def test_where_tau_decides_which_steps_pay(settings, chooses):
    assert SwapConfig(**settings).coefficients().chooses_steps == chooses


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import openrlhf_swap, openrlhf_swap.flags.configuration", "torch"),
        ("import openrlhf_swap.rewards.grader", "torch"),
        (
            "from openrlhf_swap import Scorer, swap_advantages",
            "transformers ray vllm openrlhf deepspeed peft datasets",
        ),
    ],
)
def test_an_import_takes_no_more_than_it_needs(code, absent):
    code += f"; import sys; print([name for name in {absent.split()} if name in sys.modules])"
    assert python("-c", code).stdout == "[]\n"


@pytest.mark.parametrize("symbol", ["theta", "lambda_", "K"])
def test_a_symbol_of_the_paper_is_answered_with_its_setting(symbol):
    names = {"theta": "process_weight", "lambda_": "length_coef", "K": "max_steps"}
    with pytest.raises(ConfigError, match=f" is --swap.{names[symbol]}"):
        SwapConfig(**{symbol: 1})


def test_a_value_of_another_type_in_the_options_is_one_line():
    with pytest.raises(
        ConfigError, match=r"^--swap\.options is 3, which should be a valid string$"
    ):
        SwapConfig(options={"limit": 3})
