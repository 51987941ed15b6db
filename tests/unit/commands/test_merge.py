"""Adapters become a whole model."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from support.paths import POLICY
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap.runs import merge
from openrlhf_swap.runs.model_code import check_model_files

RANK, ALPHA = 4, 16


@pytest.fixture(scope="module")
def adapters(tmp_path_factory):
    """As OpenRLHF saves a policy with adapters, some of them trained: with the base's configuration
    and tokenizer.
    """
    folder = tmp_path_factory.mktemp("lora") / "policy"
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16)
    config = {"target_modules": "all-linear", "task_type": "CAUSAL_LM", "init_lora_weights": False}
    get_peft_model(base, LoraConfig(r=RANK, lora_alpha=ALPHA, **config)).save_pretrained(folder)
    base.config.save_pretrained(folder)
    AutoTokenizer.from_pretrained(POLICY).save_pretrained(folder)
    return folder


def test_adapters_are_added(adapters, tmp_path, capsys):
    """W + alpha / r B A, from the files, and rounded as vLLM has it."""
    merge.main(["--adapters", str(adapters), "--output", str(tmp_path / "merged")])
    assert capsys.readouterr().out.endswith(f"{tmp_path / 'merged'} holds the merged model\n")
    factors = load_file(adapters / "adapter_model.safetensors")
    found, plain = (
        AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).state_dict()
        for folder in (tmp_path / "merged", POLICY)
    )
    changed = 0
    for name, weight in plain.items():
        key = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{key}.lora_A.weight" in factors:
            down, up = (factors[f"{key}.lora_{side}.weight"] for side in "AB")
            weight = weight + (ALPHA / RANK * up @ down).bfloat16()
            changed += 1
        assert found[name].equal(weight), name
    assert changed == 4 * 7  # layers, and matrices of each
    text = "<think>\n5+3=8\n</think>"
    one, other = (
        AutoTokenizer.from_pretrained(folder)(text) for folder in (POLICY, tmp_path / "merged")
    )
    assert one["input_ids"] == other["input_ids"]
    check_model_files("--model", str(tmp_path / "merged"))
