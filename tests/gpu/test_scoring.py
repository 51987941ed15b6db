"""Scores and log-probabilities on a GPU: exact in float32, close in bfloat16, and without waiting for a layer."""

import warnings

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.passes import FAMILIES, actor_of, micro_batch, scorer_of, update_of
from support.paths import POLICY
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.integration.runtime import attention
from openrlhf_swap.packages.kernels import leave_out_cudnn
from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX, ScoringBackend
from openrlhf_swap.scoring.small_model import small_model

PASSES = [(family, packing) for family in FAMILIES for packing in (False, True) if family != "gpt_oss" or not packing]


@pytest.fixture(autouse=True)
def as_in_a_training():
    leave_out_cudnn()


def model_of(family, dtype=torch.float32, device="cuda", layers=None, adapted=False):
    torch.manual_seed(0)
    changes = {} if layers is None else {"num_hidden_layers": layers, "layer_types": ["full_attention"] * layers}
    model = small_model(CONFIG_MAPPING[family](**changes), AutoModelForCausalLM.from_config)
    model.config.use_cache = False
    if adapted:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False))
    return model.to(device, dtype).eval()


@pytest.mark.parametrize(("family", "packing"), PASSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_equal_those_of_one_forward_per_prefix(family, packing, dtype):
    model = model_of(family, dtype)
    ids, actions, mask, requests = micro_batch()
    scorer = scorer_of(actor_of(model, packing))
    assert scorer._backend.name == SHARED_PREFIX  # tried on this device
    found = scorer.forward(ids, actions, mask, requests)
    batch = ids.cuda(), mask.cuda()
    with torch.no_grad():
        expected = ScoringBackend(PER_PREFIX).score(model, model.config, *batch, requests)
    difference = torch.cat(found.answer_logprobs).cpu().sub(torch.cat(expected)).abs().max()
    assert difference < (1e-4 if dtype == torch.float32 else 0.1)


@pytest.mark.parametrize(("family", "packing"), PASSES)
def test_log_probabilities_and_gradients_equal_those_of_a_cpu(family, packing):
    found, norm = update_of(model_of(family), packing, "cuda")
    expected, expected_norm = update_of(model_of(family, device="cpu"), packing, "cpu")
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    assert norm.item() == pytest.approx(expected_norm.item(), rel=1e-3)


@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
def test_the_kernels_for_packed_responses_give_what_a_call_for_each_gives(family, monkeypatch):
    found = [value.item() for value in update_of(model_of(family, torch.bfloat16), True, "cuda")]
    monkeypatch.setattr(attention, "takes_kernels", lambda *_: False)
    expected = [value.item() for value in update_of(model_of(family, torch.bfloat16), True, "cuda")]
    assert found == pytest.approx(expected, rel=0.05)  # bfloat16


def test_an_update_of_adapters_equals_that_of_a_cpu():
    found, norm = update_of(model_of("qwen2", adapted=True), True, "cuda")
    expected, expected_norm = update_of(model_of("qwen2", device="cpu", adapted=True), True, "cpu")
    assert [found.item(), norm.item()] == pytest.approx([expected.item(), expected_norm.item()], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("packing", [False, True])
def test_the_host_waits_neither_for_layers_nor_for_tokens(packing):
    waits = []
    for layers, tokens in ((2, 40), (5, 40), (2, 120)):
        model = model_of("qwen2", torch.bfloat16, layers=layers)
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
    assert waits[0] > 0
    assert waits[0] == waits[1]
    assert waits[0] == waits[2]


def test_the_check_of_a_gpu_finds_both_backends_alike():
    from benchmarks.gpu_check import MOST_SCORE, largest_difference

    assert largest_difference(str(POLICY), torch.device("cuda", 0)) < MOST_SCORE
