"""Packed rows beside padded ones: the same log-probabilities and gradients, however attended."""

from itertools import pairwise

import pytest
import torch
from support.passes import gradients_of
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.small_model import small_model

# Grouped heads, normed queries, windows, one key head, own scales, fused products, a latent
# vector of two head widths, experts.
FAMILIES = ["qwen2", "qwen3", "mistral", "gemma3_text", "granite", "phi3", "deepseek_v3"]
FAMILIES += ["qwen3_moe"]


def model_of(family):
    config = CONFIG_MAPPING[family](use_cache=False)  # as OpenRLHF leaves it
    return small_model(config, AutoModelForCausalLM.from_config)


def kernels(
    query, key, value, starts_q, starts_k, longest_q, longest_k, *, scale, window_size, enable_gqa
):
    """What torch documents of `varlen_attn`, query by query; its CUDA kernels want the rest."""
    assert starts_q is starts_k and starts_q.dtype == torch.int32 and enable_gqa
    assert query.shape[-1] == key.shape[-1] == value.shape[-1] and query.shape[-1] % 8 == 0
    assert all(part.stride(-1) == 1 for part in (query, key, value))
    before, after = window_size
    assert after == 0
    spans = list(pairwise(starts_q.tolist()))
    assert longest_q == longest_k == max(stop - start for start, stop in spans)
    outputs = []
    for start, stop in spans:
        for place in range(start, stop):
            seen = slice(start if before < 0 else max(start, place - before), place + 1)
            groups = len(query[0]) // len(key[0])
            keys, values = (part[seen].repeat_interleave(groups, 1) for part in (key, value))
            weights = torch.einsum("hd,khd->hk", query[place], keys).mul(scale).softmax(-1)
            outputs.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(outputs)


def in_float64(query, key, value, *spans, **options):
    wide = (part.double() for part in (query, key, value))
    return kernels(*wide, *spans, **options).to(query.dtype)


@pytest.fixture
def untried():
    """Kernels that no test has tried before, nor will have."""
    attention.kernels_work.cache_clear()
    yield
    attention.kernels_work.cache_clear()


@pytest.fixture(params=["one by one", "kernels"])
def attended(request, monkeypatch):
    """By each of the two ways, the second with a stand-in for the kernels, which need a GPU."""
    if request.param == "kernels":
        monkeypatch.setattr(attention, "takes_kernels", lambda *_: True)
        monkeypatch.setattr(attention, "varlen_attn", kernels)


def assert_packed_as_padded(model, expected, padded):
    log_probs, packed = gradients_of(model, packing=True)
    torch.testing.assert_close(log_probs, expected, rtol=2e-5, atol=2e-5)
    assert packed.keys() == padded.keys()
    for name, gradient in packed.items():
        assert (gradient - padded[name]).norm() <= 1e-4 * max(1e-2, padded[name].norm()), name


@pytest.mark.parametrize("family", FAMILIES)
def test_an_update_of_a_packed_row_is_that_of_padded_rows(family, attended):
    model = model_of(family)
    assert_packed_as_padded(model, *gradients_of(model, packing=False))


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_run_again_in_the_backward_pass_know_the_responses(reentrant, attended):
    model = model_of("gemma3_text")
    padded = gradients_of(model, packing=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_packed_as_padded(model, *padded)


def test_the_first_pass_of_a_process_may_be_a_checkpointed_training(monkeypatch, untried):
    """Tried inside a layer, the kernels would save tensors that the layer's second run has not."""
    monkeypatch.setattr(attention, "is_on_gpu", lambda _: True)
    monkeypatch.setattr(attention, "varlen_attn", in_float64)
    model = model_of("qwen2").bfloat16()
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    _, gradients = gradients_of(model, packing=True)
    assert attention.kernels_work.cache_info().misses == 1
    assert all(gradient.isfinite().all() for gradient in gradients.values())


def test_sinks_are_refused():
    """Without them gpt-oss would run, and be another model."""
    query = torch.ones(1, 1, 2, 8)
    with pytest.raises(ValueError, match="sinks"):
        attention.attend(torch.nn.Module(), query, query, query, None, s_aux=torch.zeros(1))


def mixing(query, key, value, starts, *_, **options):
    """Kernels that let responses see one another."""
    whole = starts[[0, -1]]
    return in_float64(query, key, value, whole, whole, len(query), len(query), **options)


def absent(*_, **__):
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore")


@pytest.mark.parametrize(
    ("function", "reason"),
    [(in_float64, None), (mixing, "they are off by"), (absent, "FlashAttention only supports")],
)
def test_kernels_are_tried_before_they_are_used(function, reason, monkeypatch, recwarn, untried):
    monkeypatch.setattr(attention, "varlen_attn", function)
    assert attention.kernels_work(torch.device("cpu")) == (reason is None)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (reason is not None)
    for message in messages:
        assert f"one by one: torch's kernels for them fail ({reason}" in message
        assert "\n" not in message
