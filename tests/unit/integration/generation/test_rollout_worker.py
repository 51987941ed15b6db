"""What vLLM's worker makes of the policy's weights; tests/stack/test_families.py has vLLM itself."""

import pytest
import torch
from safetensors.torch import load_file
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.generation.rollout_worker import convert_to_checkpoint, model_without_weights
from openrlhf_swap.scoring.small_model import small_model

FAMILIES = ["qwen2", "qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "qwen3_5_text", "olmo_hybrid", "nemotron_h"]


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_one_by_one_are_those_of_a_checkpoint(family, tmp_path):
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.save_pretrained(tmp_path)
    written = load_file(tmp_path / "model.safetensors")
    sent_by = model_without_weights(str(tmp_path), trust_remote_code=False)
    made = {}
    for name, weight in model.named_parameters():
        made |= dict(convert_to_checkpoint(sent_by, [(name, weight.detach())]))
    buffers = dict(convert_to_checkpoint(sent_by, model.named_buffers()))
    assert written.keys() - buffers.keys() == made.keys()
    assert all(torch.equal(weight, written[name]) for name, weight in made.items())
