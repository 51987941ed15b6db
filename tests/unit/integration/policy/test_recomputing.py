"""An update that keeps the results of products and attention, beside the two that torch has."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    Gemma3TextConfig,
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from openrlhf_swap.integration.policy.recomputing import keep_products
from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.small_model import small_model


def keep_all(model):
    model.gradient_checkpointing_disable()


def keep_inputs(model):
    model.gradient_checkpointing_enable({"use_reentrant": False})


def updated(model, keep):
    """The gradients of two packed responses, and the operations of their products."""
    keep(model)
    model.zero_grad()
    ids = torch.arange(30).unsqueeze(0)
    positions = torch.cat([torch.arange(20), torch.arange(10)]).unsqueeze(0)
    with FlopCounterMode(display=False) as counter:
        logits = model(ids, position_ids=positions, use_cache=False).logits
        logits.log_softmax(-1)[..., 3].sum().backward()
    return [weight.grad for weight in model.parameters()], counter.get_total_flops()


@pytest.mark.parametrize(
    "kind", [Qwen2Config, Qwen3Config, LlamaConfig, Gemma3TextConfig, Qwen3MoeConfig]
)
def test_gradients_are_the_same_and_no_product_is_computed_again(kind):
    model = small_model(kind(), AutoModelForCausalLM.from_config).train()
    model.set_attn_implementation(attention.NAME)
    expected, fewest = updated(model, keep_all)
    of_layers, most = updated(model, keep_inputs)
    found, computed = updated(model, keep_products)
    assert fewest == computed < most
    for one, other, same in zip(expected, of_layers, found, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, same)
