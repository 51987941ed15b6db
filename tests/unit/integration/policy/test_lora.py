"""What vLLM is told of a policy with LoRA adapters."""

import copy

import torch
from peft import LoraConfig, get_peft_model
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap.integration.policy.lora import merged_into_weights, without_adapters


def named(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_weights_travel_with_their_adapters_under_the_plain_names():
    plain = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    base = named(plain)
    torch.manual_seed(0)
    # Not the usual start, at which an adapter adds nothing.
    adapted = get_peft_model(plain, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    assert without_adapters(adapted) is plain and without_adapters(plain) is plain
    expected = named(copy.deepcopy(adapted).merge_and_unload())
    before = named(adapted)
    with merged_into_weights(adapted):
        sent = named(adapted)
    assert list(sent) == list(base)
    for name, weight in sent.items():
        torch.testing.assert_close(weight, expected[name])
        assert torch.equal(weight, base[name]) == ("_proj.weight" not in name)
    after = named(adapted)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_model_without_adapters_is_left_alone():
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    with merged_into_weights(model):
        assert dict(model.named_parameters()).keys() == named(model).keys()
        assert "named_parameters" not in vars(model)
