"""Log-probabilities in chunks inside OpenRLHF's Actor, against its own, around small random models
of families.
"""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.engine import Engine
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
from openrlhf_swap.scoring.small_model import WORDS, small_model

CHUNK = 7  # does not divide the tokens


def family(name, **changes):
    return small_model(CONFIG_MAPPING[name](**changes), AutoModelForCausalLM.from_config)


def actor_of(model, chunk, packing=False, temperature=0.6):
    actor = ChunkedActor(Engine(model))
    actor.packing_samples, actor.temperature = packing, temperature
    assert actor.hold_logits_of(chunk) is None
    return actor


def batch():
    """Three right-padded rows of unequal lengths, whose prompts and padding are no actions."""
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, WORDS, (3, 40), generator=generator)
    mask, actions = torch.ones_like(ids), torch.zeros(3, 39, dtype=torch.int64)
    for row, (start, end) in enumerate(((4, 40), (9, 21), (2, 33))):
        mask[row, end:], actions[row, start - 1 : end - 1] = 0, 1
    return ids, actions, mask, torch.randn(3, 39, generator=generator)


def update(model, chunk, entropy=False, **options):
    """Log-probabilities, entropies of actions, and every gradient of a loss of both."""
    ids, actions, mask, weights = batch()
    model.zero_grad()
    actor = actor_of(model, chunk, **options).train()
    log_probs, output = actor(
        ids, actions, mask, return_output=True, return_entropy=entropy, use_cache=False
    )
    values = [log_probs] + ([output.entropy * actions] if entropy else [])
    sum((value * weights).sum() for value in values).backward()
    gradients = {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    return [value.detach() for value in values], gradients


def assert_same_update(model, **options):
    expected, theirs = update(model, 0, **options)
    values, ours = update(model, CHUNK, **options)
    for value, other in zip(values, expected, strict=True):
        torch.testing.assert_close(value, other, rtol=1e-5, atol=1e-5)
    assert ours.keys() == theirs.keys() and ours
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).norm() <= 1e-5 * max(theirs[name].norm(), 1e-3), name


def with_adapters(model):
    config = LoraConfig(
        r=4, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    return get_peft_model(model, config)


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("tied", [False, True])
def test_an_update_has_the_gradients_of_all_logits(tied, packing, temperature):
    model = family("qwen2", tie_word_embeddings=tied)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    assert_same_update(model, packing=packing, temperature=temperature)


@pytest.mark.parametrize("name", ["gemma2", "granite", "cohere", "llama", "gpt_oss", "deepseek_v3"])
def test_families(name):
    assert_same_update(family(name))


def test_a_family_whose_float32_is_too_coarse():
    # There OpenRLHF's own gradients of Qwen3.5 are off by 2e-5: the bound held on some CPUs and not
    # on others.
    assert_same_update(family("qwen3_5_text").double())


def test_adapters():
    model = with_adapters(family("qwen2"))
    assert_same_update(model)
    assert model.get_output_embeddings().weight.grad is None


def test_gradient_checkpointing():
    for reentrant in (False, True):
        model = family("qwen2")
        model.enable_input_require_grads()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        assert_same_update(model)


def test_entropy(monkeypatch):
    from openrlhf.models import actor

    # Without torch.compile around it.
    monkeypatch.setattr(actor, "compute_entropy", actor.compute_entropy._torchdynamo_orig_callable)
    for name in ("qwen2", "gemma2"):
        assert_same_update(family(name), entropy=True)
