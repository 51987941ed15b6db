"""Packed rows beside padded ones: the same log-probabilities, losses and gradients, whatever
attends them.
"""

from itertools import pairwise

import pytest
import torch
from support.passes import actor_of, gradients_of, micro_batch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.scoring.small_model import small_model

# Of one head width or two, with windows, grouped heads, one key head, normed queries, a latent
# vector, experts.
FAMILIES = [
    *(
        "qwen2",
        "qwen3",
        "llama",
        "mistral",
        "gemma3_text",
        "granite",
        "olmo2",
        "phi3",
        "cohere2",
        "smollm3",
        "glm4",
    ),
    *("deepseek_v3", "qwen3_moe"),
]


def model_of(family, **changes):
    config = CONFIG_MAPPING[family](use_cache=False, **changes)  # as OpenRLHF leaves it
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
            keys, values = (
                part[seen].repeat_interleave(len(query[0]) // len(part[0]), 1)
                for part in (key, value)
            )
            weights = torch.einsum("hd,khd->hk", query[place], keys).mul(scale).softmax(-1)
            outputs.append(torch.einsum("hk,khd->hd", weights, values))
    return torch.stack(outputs)


@pytest.fixture(params=["one by one", "kernels"])
def attended(request, monkeypatch):
    """By each of the two ways, the second with a stand-in for the kernels, which need a GPU."""
    if request.param == "kernels":
        monkeypatch.setattr(attention, "takes_kernels", lambda *_: True)
        monkeypatch.setattr(attention, "varlen_attn", kernels)


def assert_same(gradients, expected):
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= 1e-4 * max(1e-2, expected[name].norm()), name


@pytest.mark.parametrize("family", FAMILIES)
def test_an_update_of_a_packed_row_is_that_of_padded_rows(family, attended):
    model = model_of(family)
    expected, padded = gradients_of(model, packing=False)
    log_probs, packed = gradients_of(model, packing=True)
    torch.testing.assert_close(log_probs, expected, rtol=2e-5, atol=2e-5)
    assert_same(packed, padded)


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_that_are_run_again_in_the_backward_pass_know_the_responses(reentrant, attended):
    model = model_of("gemma3_text")
    expected, padded = gradients_of(model, packing=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    log_probs, packed = gradients_of(model, packing=True)
    torch.testing.assert_close(log_probs, expected, rtol=2e-5, atol=2e-5)
    assert_same(packed, padded)


def test_padded_rows_are_attended_as_by_sdpa():
    model = model_of("mistral")
    ids, actions, mask, _ = micro_batch()
    expected = actor_of(model, packing=False)(ids, actions, mask)
    model.set_attn_implementation(attention.NAME)
    assert torch.equal(actor_of(model, packing=False)(ids, actions, mask), expected)


@pytest.mark.parametrize("lengths", [[7], [1, 1], [3, 1, 5]])
def test_layers_get_the_bounds_in_the_place_of_a_mask(lengths):
    model = model_of("qwen2")
    model.set_attn_implementation(attention.NAME)
    got = []
    model.model.layers[0].self_attn.register_forward_pre_hook(
        lambda _layer, _inputs, options: got.append(options["attention_mask"]), with_kwargs=True
    )
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    model(torch.ones_like(positions), position_ids=positions, use_cache=False)
    (bounds,) = got
    assert (
        bounds.places
        == bounds.on_device.tolist()
        == [sum(lengths[:n]) for n in range(len(lengths) + 1)]
    )
    assert (bounds.longest, bounds.on_device.dtype) == (max(lengths), torch.int32)


def test_sinks_are_refused():
    """Without them gpt-oss would run, and be another model."""
    query = torch.ones(1, 1, 2, 8)
    with pytest.raises(ValueError, match="sinks"):
        attention.attend(torch.nn.Module(), query, query, query, None, s_aux=torch.zeros(1))


def exact(query, key, value, *spans, scale, window_size, enable_gqa):
    return kernels(
        *(part.double() for part in (query, key, value)),
        *spans,
        scale=scale,
        window_size=window_size,
        enable_gqa=enable_gqa,
    ).to(query.dtype)


def unpacked(query, key, value, starts, *rest, **options):
    """Kernels that let responses see one another."""
    whole = starts[[0, -1]]
    return exact(query, key, value, whole, whole, len(query), len(query), **options)


def absent(*_, **__):
    raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore")


@pytest.mark.parametrize(
    ("function", "reason"),
    [(exact, None), (unpacked, "they are off by"), (absent, "FlashAttention only supports")],
)
def test_kernels_are_tried_before_they_are_used(function, reason, monkeypatch, recwarn):
    monkeypatch.setattr(attention, "varlen_attn", function)
    attention.kernels_work.cache_clear()
    assert attention.kernels_work(torch.device("cpu")) == (reason is None)
    messages = [str(warning.message) for warning in recwarn]
    assert len(messages) == (reason is not None) and all(
        "\n" not in message for message in messages
    )
    assert all(
        f"one by one: torch's kernels for them fail ({reason}" in message for message in messages
    )
    attention.kernels_work.cache_clear()


def test_heads_and_numbers_that_the_kernels_do_not_take(monkeypatch):
    def takes(width, dtype, on_gpu=True):
        head = torch.ones(1, dtype=dtype).expand(1, 1, 1, width)
        query = type(
            "Query", (), {"shape": head.shape, "dtype": dtype, "is_cuda": on_gpu, "device": "gpu"}
        )
        return attention.takes_kernels(query, head)

    monkeypatch.setattr(attention, "kernels_work", lambda _: True)
    assert takes(256, torch.bfloat16) and takes(80, torch.float16)
    assert (
        not takes(264, torch.bfloat16)
        and not takes(64, torch.float32)
        and not takes(64, torch.bfloat16, False)
    )
