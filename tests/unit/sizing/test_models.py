import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.paths import POLICY
from transformers import CONFIG_MAPPING, AutoConfig, AutoModelForCausalLM, DynamicCache

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.scoring.small_model import small_model
from openrlhf_swap.sizing.engine import kept_cache
from openrlhf_swap.sizing.models import read_model


def test_a_model_in_a_folder():
    # Its README's 0.8M; input and output share their weights, so all of them multiply.
    model = read_model(str(POLICY), 512)
    assert model.parameters == AutoModelForCausalLM.from_pretrained(POLICY).num_parameters()
    assert model.layers == 4
    assert model.query == 128
    assert model.key_value == 64
    assert model.looked_up == 0


WIDE = '{"model_type": "qwen2", "hidden_size": "wide"}'


@pytest.mark.parametrize(("text", "reason"), [("{", "not a valid JSON file"), (WIDE, "field")])
def test_a_configuration_that_cannot_be_read_is_one_line(tmp_path, text, reason):
    (tmp_path / "config.json").write_text(text)
    message = rf"--actor.model_name_or_path is {tmp_path}, whose configuration cannot .*{reason}"
    with pytest.raises(ConfigError, match=message) as raised:
        read_model(str(tmp_path), 1)
    assert len(str(raised.value).splitlines()) == 1


@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_adapters_are_those_that_peft_makes(targets):
    whole = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(POLICY))
    parameters = whole.num_parameters()
    adapted = get_peft_model(whole, LoraConfig(r=4, target_modules=targets))
    trained = [parameter.numel() for parameter in adapted.parameters() if parameter.requires_grad]
    model = read_model(str(POLICY), 1, 4, targets)
    assert model.adapters == sum(trained)
    assert model.largest == max(trained)
    assert model.trained == model.adapters
    assert model.held == model.adapters + model.parameters
    assert model.parameters == parameters


@pytest.mark.parametrize(
    ("family", "billions", "active"),
    # As their makers publish them. Their "active" leave out the embedding, which multiplies
    # nothing.
    [
        ("deepseek_v3", 671, 37),
        ("gpt_oss", 117, 5.1),
        ("mixtral", 46.7, 12.9),
    ],
)
def test_published_mixtures_of_experts(family, billions, active, tmp_path):
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    model = read_model(str(tmp_path), 1)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.02)
    assert model.multiplying / 1e9 == pytest.approx(active, rel=0.1)


@pytest.mark.parametrize(
    "family", ["qwen2", "gemma3_text", "deepseek_v3", "qwen3_5_text", "gpt_oss"]
)
def test_caches_are_those_of_transformers(family, tmp_path):
    """Keys, latent vectors and states of recurrent layers, of fewer tokens than a window has."""
    small = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    small.save_pretrained(tmp_path)
    model = read_model(str(tmp_path), 1)
    cache = DynamicCache(config=small.config)
    with torch.no_grad():
        small(torch.zeros(1, 6, dtype=torch.int64), use_cache=True, past_key_values=cache)
    layers = [layer for layer in cache.layers if getattr(layer, "keys", None) is not None]
    keys_and_values = sum(layer.keys.numel() + layer.values.numel() for layer in layers)
    assert kept_cache(model, 6) == 2 * keys_and_values
    states = 0
    for layer in cache.layers:
        for name in ("conv_states", "recurrent_states"):
            held = getattr(layer, name, {})
            states += sum(state.numel() for state in held.values())
    assert model.states == states
    assert len(model.windows) == len(layers)
    assert (min(model.windows) == 8) == (family in ("gemma3_text", "gpt_oss"))
