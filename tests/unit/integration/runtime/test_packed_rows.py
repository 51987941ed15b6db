"""Packed rows beside padded ones: the same log-probabilities and gradients, however attended."""

from itertools import pairwise

import pytest
import torch
from support.passes import gradients_of
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.packages import kernels
from openrlhf_swap.scoring.small_model import small_model

# Grouped heads, normed queries, windows, one key head, own scales, fused products, a latent
# vector of two head widths, experts.
FAMILIES = ["qwen2", "qwen3", "mistral", "gemma3_text", "granite", "phi3", "deepseek_v3"]
FAMILIES += ["qwen3_moe"]


def model_of(family):
    config = CONFIG_MAPPING[family](use_cache=False)  # as OpenRLHF leaves it
    return small_model(config, AutoModelForCausalLM.from_config)


def plain_kernel(
    query, key, value, starts_q, starts_k, longest_q, longest_k, *, scale, window_size, enable_gqa
):
    """What torch documents of `varlen_attn`, query by query; its CUDA kernels want the rest."""
    assert starts_q is starts_k
    assert starts_q.dtype == torch.int32
    assert enable_gqa
    assert query.shape[-1] == key.shape[-1] == value.shape[-1]
    assert query.shape[-1] % 8 == 0
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


@pytest.fixture
def attended(request, monkeypatch):
    """One by one, or with a stand-in for the kernels, which need a GPU."""
    if request.param == "by kernels":
        monkeypatch.setattr(attention, "takes_sequences", lambda *_: True)
        monkeypatch.setattr(kernels, "varlen_attn", plain_kernel)


def assert_packed_as_padded(model, expected, padded):
    log_probs, packed = gradients_of(model, packing=True)
    torch.testing.assert_close(log_probs, expected, rtol=2e-5, atol=2e-5)
    assert packed.keys() == padded.keys()
    for name, gradient in packed.items():
        error = (gradient - padded[name]).norm()
        assert error <= 1e-4 * max(1e-2, padded[name].norm()), name


WAYS = [(family, "one by one") for family in FAMILIES]
WAYS += [(family, "by kernels") for family in ("qwen2", "gemma3_text", "deepseek_v3")]


@pytest.mark.parametrize(("family", "attended"), WAYS, indirect=["attended"])
def test_an_update_of_a_packed_row_is_that_of_padded_rows(family, attended):
    model = model_of(family)
    assert_packed_as_padded(model, *gradients_of(model, packing=False))


@pytest.mark.parametrize("attended", ["one by one"], indirect=True)
@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_run_again_in_the_backward_pass_know_the_responses(reentrant, attended):
    model = model_of("gemma3_text")
    padded = gradients_of(model, packing=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    assert_packed_as_padded(model, *padded)


def test_sinks_are_refused():
    """Without them gpt-oss would run, and be another model."""
    query = torch.ones(1, 1, 2, 8)
    with pytest.raises(ValueError, match="sinks"):
        attention.attend(torch.nn.Module(), query, query, query, None, s_aux=torch.zeros(1))
