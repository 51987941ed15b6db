"""What vLLM is told of a policy with LoRA adapters."""

import copy
import weakref
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap.integration.policy import actors
from openrlhf_swap.integration.policy.weights import merged_into_weights, named_weights, without_adapters


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
        sent = {name: weight.detach().clone() for name, weight in named_weights(adapted)}
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
        assert [(name, id(weight)) for name, weight in named_weights(model)] == [
            (name, id(weight)) for name, weight in model.named_parameters()
        ]


class Sender:
    """What sends weights; `sent` are those that a merge has made."""

    def __init__(self, weights):
        self.own, self.weights, self.sent = {weight.data_ptr() for weight in weights}, weights, []

    def send_weights(self):
        self.sent = [
            weakref.ref(weight.untyped_storage()) for weight in self.weights if weight.data_ptr() not in self.own
        ]


@pytest.mark.parametrize(("rank", "merged"), [(4, 28), (0, 0)])
def test_no_merged_weight_is_left_in_the_cache_after_they_are_sent(monkeypatch, rank, merged):
    """What is still in use when the cache is emptied for the last time stays there while vLLM wakes."""
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
    trainer, in_use = actors.SwapPolicyTrainer.__new__(actors.SwapPolicyTrainer), []
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=model))
    trainer.args = SimpleNamespace(vllm=SimpleNamespace(enable_prefix_caching=False))
    trainer._sender = Sender(list(model.parameters()))
    monkeypatch.setattr(actors, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(
        torch.cuda, "empty_cache", lambda: in_use.append(sum(made() is not None for made in trainer._sender.sent))
    )
    trainer.broadcast_to_vllm()
    assert len(trainer._sender.sent) == merged and in_use[-1] == 0
