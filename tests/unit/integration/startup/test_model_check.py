"""What is found out about a model before a run starts."""

from types import SimpleNamespace

import pytest
from transformers import CONFIG_MAPPING

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.integration.startup import model_check


def packing(folder, packed=False, dynamic=False):
    args = SimpleNamespace(
        actor=SimpleNamespace(model_name_or_path=str(folder)),
        ds=SimpleNamespace(packing_samples=packed),
        train=SimpleNamespace(dynamic_batch_enable=dynamic),
    )
    return SimpleNamespace(args=args, run=RunConfig())


@pytest.mark.parametrize("family", ["gemma3_text", "deepseek_v3"])
def test_attention_keeps_packed_responses_apart(family, tmp_path):
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    model_check.check_packing(packing(tmp_path, packed=True))


@pytest.mark.parametrize("family", ["qwen3_5_text", "gpt_oss"])
def test_recurrent_layers_and_gpt_oss_do_not(family, tmp_path):
    """transformers 5.15 makes gpt-oss's masks without the positions."""
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    model_check.check_packing(packing(tmp_path))
    for flag, given in (("--ds.packing_samples", (True, True)), ("--train.dynamic_batch_enable", (False, True))):
        with pytest.raises(ConfigError, match=f"^{flag}: .* has layers that read on from one packed response"):
            model_check.check_packing(packing(tmp_path, *given))


@pytest.mark.parametrize("family", ["qwen3_5", "gemma3", "mistral3"])
def test_a_multimodal_model_is_refused(family, tmp_path, tokenizer):
    """OpenRLHF calls it one too."""
    from openrlhf.utils.utils import is_vlm_model

    tokenizer.save_pretrained(tmp_path)
    CONFIG_MAPPING[family]().save_pretrained(tmp_path)
    assert is_vlm_model(str(tmp_path))
    with pytest.raises(ConfigError, match=r"a multimodal model .* give a checkpoint of its language model alone"):
        model_check.check_model(str(tmp_path), 100)


def test_a_chat_template_that_the_model_has_not_is_refused():
    model = SimpleNamespace(model_name_or_path="some/base")
    for template, flag in ((None, False), ("{{ messages }}", True)):
        args = SimpleNamespace(actor=model, data=SimpleNamespace(apply_chat_template=flag))
        model_check.check_chat_template(args, SimpleNamespace(chat_template=template))
    with pytest.raises(ConfigError) as error:
        model_check.check_chat_template(args, SimpleNamespace(chat_template=None))
    assert str(error.value) == (
        "--data.apply_chat_template is on, but some/base has no chat template; leave the flag out (where a recipe or "
        "a file sets it: --no-data.apply_chat_template) and give --data.input_template, or give a model with a "
        "template"
    )


def test_the_attention_is_one_that_the_model_has(tmp_path, monkeypatch):
    """gpt-oss has sinks, which neither SDPA nor flash-attn know."""
    CONFIG_MAPPING["gpt_oss"]().save_pretrained(tmp_path)
    for installed in (False, True):
        monkeypatch.setattr(attention, "is_installed", lambda installed=installed: installed)
        for asked in ("sdpa", attention.FLASH):
            attention.implementation.cache_clear()
            assert attention.implementation(asked, str(tmp_path)) == "eager"
            assert f"eager, because the code of {tmp_path} has no {asked}" in attention.summary(asked, str(tmp_path))
    attention.implementation.cache_clear()
