"""Which scoring backend is chosen, by a trial on a small model of the architecture."""

import pytest
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, BloomConfig, Qwen2Config

from openrlhf_swap.scoring.attention import BranchAttention
from openrlhf_swap.scoring.backends import try_backend
from openrlhf_swap.scoring.small_model import small_model

build = AutoModelForCausalLM.from_config


def backend_of(config, build=build, **how):
    return try_backend(lambda: small_model(config, build), **how)


PUBLISHED = ["qwen2", "qwen3_moe", "mistral", "gemma3_text", "gemma4_text", "gpt_oss"]
PUBLISHED += ["deepseek_v3", "qwen3_5_text"]


@pytest.mark.parametrize("family", PUBLISHED)
def test_published_shapes_are_branched(family):
    """A family's default configuration is a published model's: billions of parameters."""
    config = CONFIG_MAPPING[family]()
    before = config.to_dict()
    backend = backend_of(config)
    assert backend.name == "shared_prefix"
    assert backend.obstacle is None
    assert config.to_dict() == before


def test_what_cannot_be_branched_is_scored_prefix_by_prefix():
    """Llama 4 attends in chunks that ours does not know, Bloom's attention cannot be replaced."""
    llama = backend_of(CONFIG_MAPPING["llama4_text"](num_hidden_layers=4))
    bloom = backend_of(BloomConfig(vocab_size=64, hidden_size=32, n_layer=1, n_head=2))
    assert llama.name == bloom.name == "per_prefix"
    assert "a small Llama4ForCausalLM is off by" in llama.obstacle
    assert "because branching a small BloomForCausalLM failed" in str(bloom)


def test_a_packed_pass_is_tried_packed():
    """gpt-oss reads on from one packed response into the next, which changes its keys."""
    for family, name in (("deepseek_v3", "shared_prefix"), ("gpt_oss", "per_prefix")):
        assert backend_of(CONFIG_MAPPING[family](), packed=True).name == name


def test_an_architecture_that_cannot_be_built_small_is_scored_prefix_by_prefix():
    def broken(config):
        raise ValueError("no such kernel\nat line 3")

    backend = backend_of(Qwen2Config(), broken)
    assert backend.name == "per_prefix"
    assert backend.obstacle.endswith("could be run (no such kernel)")


@pytest.mark.parametrize("forgotten", ["sliding_window", "s_aux"])
def test_the_trial_notices_what_an_attention_ignores(forgotten, monkeypatch):
    """Otherwise a backend could wrongly pass."""
    real = BranchAttention._attend

    def forgetful(*arguments, sliding_window=None, s_aux=None, **options):
        kept = {"sliding_window": sliding_window, "s_aux": s_aux} | {forgotten: None}
        return real(*arguments, **kept, **options)

    monkeypatch.setattr(BranchAttention, "_attend", forgetful)
    backend = backend_of(CONFIG_MAPPING["gpt_oss"]())
    assert backend.name == "per_prefix"
    assert "is off by" in backend.obstacle
