"""What vLLM is told of a policy with LoRA adapters, and the moving average of the weights, by hand."""

import copy
import weakref
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap.integration.policy import actors
from openrlhf_swap.integration.policy.strategy import SwapStrategy
from openrlhf_swap.integration.policy.weights import (
    begin_average,
    load_average,
    merged_into_weights,
    named_weights,
    rounded_average,
    save_average,
    without_adapters,
)


def named(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_weights_travel_with_their_adapters_under_the_plain_names():
    plain = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    base = named(plain)
    torch.manual_seed(0)
    # Not the usual start, at which an adapter adds nothing.
    adapted = get_peft_model(
        plain, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False)
    )
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
            weakref.ref(weight.untyped_storage())
            for weight in self.weights
            if weight.data_ptr() not in self.own
        ]


@pytest.mark.parametrize(("rank", "merged"), [(4, 28), (0, 0)])
def test_no_merged_weight_is_left_in_the_cache_after_they_are_sent(monkeypatch, rank, merged):
    """What is still in use when the cache is emptied for the last time stays there while vLLM
    wakes.
    """
    model = AutoModelForCausalLM.from_pretrained(POLICY)
    if rank:
        model = get_peft_model(model, LoraConfig(r=rank, target_modules="all-linear"))
    trainer, in_use = actors.SwapPolicyTrainer.__new__(actors.SwapPolicyTrainer), []
    trainer.actor = SimpleNamespace(model=SimpleNamespace(module=model))
    trainer.args = SimpleNamespace(vllm=SimpleNamespace(enable_prefix_caching=False))
    trainer._sender = Sender(list(model.parameters()))
    monkeypatch.setattr(actors, "torch_dist_barrier_and_cuda_sync", lambda: None)
    monkeypatch.setattr(
        torch.cuda,
        "empty_cache",
        lambda: in_use.append(sum(made() is not None for made in trainer._sender.sent)),
    )
    trainer.broadcast_to_vllm()
    assert len(trainer._sender.sent) == merged and in_use[-1] == 0


BETA = 0.992
STEP = 2.0**-7  # from 1 to the next number in bfloat16


def make_model(weight):
    model = torch.nn.Linear(2, 2, bias=False, dtype=torch.bfloat16)
    torch.nn.init.constant_(model.weight, weight)
    return model


def make_average(weight=1.0):
    average = make_model(weight)
    begin_average(average, first=True)
    return average


@pytest.fixture
def strategy():
    """OpenRLHF's as far as it averages, with two micro-batches an update."""
    made = SwapStrategy.__new__(SwapStrategy)
    made.time_steps, made.accumulated_gradient, made.use_dynamic_batch, made.stage = (
        defaultdict(int),
        2,
        False,
        2,
    )
    return made


def train(strategy, average, updates):
    for _ in range(strategy.accumulated_gradient * updates):
        strategy.moving_average(make_model(1 + STEP), average, BETA, "cpu")


def test_the_smallest_change_of_a_weight_reaches_the_average(strategy):
    """In bfloat16 the average would stay at 1: what an update adds is less than 1% of the distance
    to the next one.
    """
    average = make_average()
    train(strategy, average, 300)
    expected = 1 + STEP * (1 - BETA**300)
    assert torch.allclose(average.weight, torch.full((2, 2), expected), rtol=0, atol=1e-5)


def test_a_resumed_average_goes_on_where_it_was(strategy, tmp_path):
    straight, stopped, resumed = make_average(), make_average(), make_average(5.0)
    train(strategy, straight, 7)
    strategy.time_steps.clear()
    train(strategy, stopped, 3)
    save_average(tmp_path, stopped, strategy)
    strategy.time_steps.clear()
    load_average(tmp_path, resumed, strategy)
    assert strategy.time_steps["ema"] == 2 * 3
    train(strategy, resumed, 4)
    assert torch.equal(resumed.weight, straight.weight)


def test_it_is_exported_as_the_policy_is_and_stays_exact(strategy):
    average = make_average()
    for _ in range(strategy.accumulated_gradient):
        strategy.moving_average(make_model(1 + STEP), average, 0.25)
    exact = average.weight.clone()
    with pytest.raises(OSError, match="full"), rounded_average(average):
        assert average.weight.dtype == torch.bfloat16
        assert torch.equal(
            average.state_dict()["weight"], make_model(1 + STEP).weight
        )  # 1 + 0.75 STEP, rounded
        raise OSError("full")
    assert average.weight.dtype == torch.float32 and torch.equal(average.weight, exact)


def test_only_the_first_rank_holds_one():
    other = make_model(1.0)
    begin_average(other, first=False)
    with rounded_average(other):
        assert other.weight.numel() == 0
    with rounded_average(None):
        pass  # a run without an average
