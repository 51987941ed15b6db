"""What vLLM is told of a policy with LoRA adapters."""

import copy
import weakref

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap.integration.policy.adapters import merges, named_weights, without_adapters
from openrlhf_swap.integration.weights.source import PolicyWeights


def weights_of(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def source_of(model):
    return PolicyWeights(without_adapters(model), named_weights(model), merges(model))


def adapted(model):
    """The model in adapters that add something, unlike new ones."""
    torch.manual_seed(0)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    return get_peft_model(model, config)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_merged_weights_travel_and_the_policy_stays_as_it_is(dtype):
    plain = AutoModelForCausalLM.from_pretrained(POLICY, dtype=dtype)
    base = weights_of(plain)
    policy = adapted(plain)
    assert without_adapters(policy) is plain
    assert without_adapters(plain) is plain
    expected = weights_of(copy.deepcopy(policy).merge_and_unload())
    before = weights_of(policy)
    source = source_of(policy)
    sent = dict(source)
    assert list(sent) == list(base) == [meta.name for meta in source.metadata()]
    for name, weight in sent.items():
        torch.testing.assert_close(weight, expected[name])
        assert torch.equal(weight, base[name]) == ("_proj.weight" not in name)
        assert weight.dtype == dtype
        assert not weight.requires_grad
    after = weights_of(policy)
    assert list(after) == list(before)
    assert all(torch.equal(after[name], weight) for name, weight in before.items())


def test_one_merged_weight_is_there_at_a_time():
    """All of them at once were the largest part of a transfer beside the engine's weights."""
    policy = adapted(AutoModelForCausalLM.from_pretrained(POLICY))
    own = {weight.data_ptr() for weight in policy.parameters()}
    made = []
    most = 0
    for _, weight in source_of(policy):
        if weight.data_ptr() not in own:
            made.append(weakref.ref(weight.untyped_storage()))
        most = max(most, sum(storage() is not None for storage in made))
    assert len(made) == 28
    assert most == 1
