"""Scores and log-probabilities on a GPU: exact in float32, close in bfloat16, without waiting."""

import warnings
from dataclasses import replace

import pytest
import torch
from support.hidden_steps import slow_needs
from support.passes import FAMILIES, actor_of, micro_batch, model_of, scorer_of, update_of
from support.paths import POLICY

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.packages.kernels import leave_out_cudnn
from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX, ScoringBackend

PASSES = [(family, False) for family in FAMILIES]
PASSES += [(family, True) for family in FAMILIES if family != "gpt_oss"]


@pytest.fixture(autouse=True)
def as_in_a_training():
    leave_out_cudnn()


@pytest.mark.parametrize(("family", "packing"), PASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_equal_those_of_one_forward_per_prefix(family, packing, dtype):
    model = model_of(family, dtype, "cuda")
    ids, actions, mask, requests = micro_batch()
    scorer = scorer_of(actor_of(model, packing))
    assert scorer._backend.name == SHARED_PREFIX  # tried on this device
    found = scorer.forward(ids, actions, mask, requests)
    scores = torch.cat([signals["answer_logprobs"] for signals in found.signals])
    with torch.no_grad():
        signals = ScoringBackend(PER_PREFIX).read(model, ids.cuda(), mask.cuda(), requests)
        expected = torch.cat(signals["answer_logprobs"])
    assert (scores - expected).abs().max() < (1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_needs_equal_those_of_a_masked_pass_for_each_step(family, dtype):
    """In bfloat16 layers without a window run torch's kernel for varying lengths."""
    ids, actions, mask, requests = micro_batch()
    names = ("answer_logprobs", "need")
    requests = [replace(each, wanted=names) for each in requests]
    scorer = scorer_of(actor_of(model_of(family, dtype, "cuda"), packing=False))
    found = scorer.forward(ids, actions, mask, requests, names)
    slow = model_of(family, torch.float32)
    slow.set_attn_implementation("eager")
    for request, signals in zip(requests, found.signals, strict=True):
        row = ids[request.row][mask[request.row].bool()]
        difference = (signals["need"] - slow_needs(slow, row, request)).abs().max()
        assert difference < (1e-4 if dtype == torch.float32 else 0.2)


@pytest.mark.parametrize(("family", "packing"), PASSES)
def test_log_probabilities_and_gradients_equal_those_of_a_cpu(family, packing):
    found, norm = update_of(model_of(family, torch.float32, "cuda"), packing, "cuda")
    expected, expected_norm = update_of(model_of(family, torch.float32), packing)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert norm.item() == pytest.approx(expected_norm.item(), rel=1e-3)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
def test_the_kernels_for_packed_responses_give_what_a_call_for_each_gives(family, monkeypatch):
    """In float16: bfloat16's rounding alone moves gemma3's norm by 4 to 8%, float16's by 0.05%."""

    def update():
        model = model_of(family, torch.float16, "cuda")
        return [value.item() for value in update_of(model, True, "cuda")]

    found = update()
    monkeypatch.setattr(attention, "takes_sequences", lambda *_: False)
    assert found == pytest.approx(update(), rel=0.05)


def test_an_update_of_adapters_equals_that_of_a_cpu():
    found, norm = update_of(model_of("qwen2", torch.float32, "cuda", adapted=True), True, "cuda")
    expected, expected_norm = update_of(model_of("qwen2", torch.float32, adapted=True), True)
    assert found.item() == pytest.approx(expected.item(), rel=1e-3, abs=1e-5)
    assert norm.item() == pytest.approx(expected_norm.item(), rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("packing", [False, True])
def test_the_host_waits_neither_for_layers_nor_for_tokens(packing):
    waits = []
    for layers, tokens in ((2, 40), (5, 40), (2, 120)):
        model = model_of("qwen2", device="cuda", layers=layers)
        ids, actions, mask, requests = micro_batch(tokens)
        scorer = scorer_of(actor_of(model, packing))
        scorer.forward(ids, actions, mask, requests)
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                scorer.forward(ids, actions, mask, requests)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchronizing CUDA operation" in str(each.message) for each in caught))
    assert waits[0] == waits[1] == waits[2] > 0


def test_the_check_of_a_gpu_finds_both_backends_alike():
    from openrlhf_swap.check import MOST_SCORE, largest_difference

    assert largest_difference(str(POLICY), torch.device("cuda", 0)) < MOST_SCORE
