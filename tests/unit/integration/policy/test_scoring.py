"""Scores beside OpenRLHF's log-probabilities, with its own Actor around small random models of
several families.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.engine import Engine
from support.hidden_steps import slow_needs
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
from openrlhf_swap.integration.policy.scorer import PolicyScorer
from openrlhf_swap.scoring.answer import (
    AnswerBranch,
    ScoreRequest,
    read_per_prefix,
    score_per_prefix,
)
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.scoring.states import read_states

FAMILIES = ["qwen2", "gemma3_text", "gpt_oss", "deepseek_v3", "qwen3_5_text", "nemotron_h", "bloom"]
NEW_KINDS = [
    "gemma3_text",
    "deepseek_v3",
    "qwen3_5_text",
]  # windows, latent attention, recurrent layers
TEMPERATURE = 0.6


def make_scorer(model, scoring="shared_prefix", packing=False, chunk=7, stage=2):
    actor = ChunkedActor(Engine(model))
    actor.temperature, actor.packing_samples = TEMPERATURE, packing
    actor.hold_logits_of(chunk)
    said = []
    args = SimpleNamespace(
        ds=SimpleNamespace(zero_stage=stage), swap_run=RunConfig(scoring=scoring)
    )
    return actor, PolicyScorer(actor, SimpleNamespace(args=args, print=said.append)), said


def micro_batch():
    """Two right-padded rows, the first with four prefixes to score."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, WORDS, (2, 50), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 44:] = 0
    request = ScoreRequest(
        0, (9, 20, 30, 43), AnswerBranch((3, 4, 5, 6), (False, True, True, True))
    )
    return ids, mask[:, 1:], mask, request


def test_ranks_that_could_not_keep_in_step_are_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    model = small_model(CONFIG_MAPPING["bloom"](), AutoModelForCausalLM.from_config)
    with pytest.raises(
        ConfigError, match=r"--ds.zero_stage is 3 with several actors: .*BloomForCausalLM .*; use 2"
    ):
        make_scorer(model, stage=3)


@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_log_probabilities_and_scores(family):
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.config.use_cache = False  # as OpenRLHF leaves it
    actor, scorer, said = make_scorer(model)
    ids, action_mask, mask, request = micro_batch()
    with torch.no_grad():
        expected = actor.eval()(ids, action_mask, mask)
        reference = read_per_prefix(model, ids[0, :44], [10, 21, 31, 44], request.branch)
    request = replace(request, signals=("answer_logprobs", "answer_entropy"))
    scored = scorer.forward(ids, action_mask, mask, [request], request.signals)
    assert (
        scored.action_log_probs.sub(expected).abs().max() < 1e-3
        and scored.action_log_probs.dtype == torch.float32
    )
    (signals,) = scored.signals
    assert signals["answer_logprobs"].sub(reference[:, 0]).abs().max() < 1e-4
    assert signals["answer_entropy"].sub(reference[:, 1]).abs().max() < 1e-4
    assert (family == "bloom") == bool(said)
    assert scorer.metrics == {"swap/scored_one_by_one": float(family == "bloom")}
    assert actor.training


@pytest.mark.parametrize("family", NEW_KINDS)
def test_packed_samples_and_adapters_take_one_forward(family):
    """Packing: the rows lie in one, without padding."""
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.config.use_cache = False  # as OpenRLHF leaves it
    torch.manual_seed(0)
    adapted = get_peft_model(
        model, LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    ).eval()
    ids, action_mask, mask, request = micro_batch()
    both = ("answer_logprobs", "states")
    requests = [
        replace(request, signals=both),
        ScoreRequest(1, (12, 25, 49), request.branch, signals=both),
    ]
    with torch.no_grad():
        expected = make_scorer(adapted)[0].eval()(ids, action_mask, mask)
        references = [
            score_per_prefix(
                adapted,
                ids[each.row, : int(mask[each.row].sum())],
                [end + 1 for end in each.prefix_ends],
                each.branch,
            )
            for each in requests
        ]
    expected_states = read_states(model, ids, mask, requests)
    for attention, packing in (("sdpa", False), ("sdpa", True), ("swap_rows", True)):
        if packing and family == "qwen3_5_text":  # recurrent layers are refused with packing
            continue
        model.set_attn_implementation(attention)
        scorer, seen = make_scorer(adapted, packing=packing)[1], []
        hook = model.model.register_forward_pre_hook(
            lambda _model, _inputs, given, seen=seen: seen.append(given["input_ids"].numel()),
            with_kwargs=True,
        )
        scored = scorer.forward(ids, action_mask, mask, requests, both)
        hook.remove()
        # One pass, with seven branches of four tokens behind its rows.
        assert seen == [(int(mask.sum()) if packing else ids.numel()) + 7 * 4]
        assert (scored.action_log_probs - expected)[action_mask.bool()].abs().max() < 1e-3
        for ours, reference in zip(scored.signals, references, strict=True):
            assert ours["answer_logprobs"].sub(reference).abs().max() < 1e-4
        for ours, reference in zip(scored.signals, expected_states, strict=True):
            torch.testing.assert_close(ours["states"], reference, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text", "deepseek_v3"])
def test_need_is_read_behind_the_pass(family, packing):
    """At temperature 1, whatever the rollouts', beside the states of another response."""
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.config.use_cache = False
    ids, action_mask, mask, request = micro_batch()
    names = ("answer_logprobs", "need", "states")
    requests = [
        replace(request, signals=names[:2], need_window=2),
        ScoreRequest(1, (12, 49), signals=("states",)),
    ]
    plain = make_scorer(model, packing=packing)[1].forward(ids, action_mask, mask, [request])
    for chunk in (7, 0):  # without chunks answers are scored in a pass of their own
        scorer = make_scorer(model, packing=packing, chunk=chunk)[1]
        scored = scorer.forward(ids, action_mask, mask, requests, names)
        first, second = scored.signals
        expected = slow_needs(model.set_attn_implementation("eager") or model, ids[0], request, 2)
        assert (first["need"] - expected).abs().max() < 1e-4
        assert (first["answer_logprobs"] - plain.signals[0]["answer_logprobs"]).abs().max() < 1e-5
        assert list(second) == ["states"] and len(second["states"]) == 2


def plain_entropies(model, ids, request):
    """(K,) the mean entropy of each step's tokens, from the softmax of each place."""
    probabilities = (model(ids[None]).logits[0].double() / TEMPERATURE).softmax(-1)
    entropies = -(probabilities * probabilities.log()).sum(-1)
    starts = [end + 1 for end in request.prefix_ends]
    steps = zip(starts, request.own_ends, strict=False)
    return torch.stack([entropies[start - 1 : end].mean() for start, end in steps])


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("chunk", [7, 0])
def test_entropies_come_with_the_pass(packing, chunk):
    """Of all steps, beside the scores of one response; what a step observed does not count."""
    model = small_model(CONFIG_MAPPING["qwen2"](), AutoModelForCausalLM.from_config)
    model.config.use_cache = False
    ids, action_mask, mask, request = micro_batch()
    names = ("answer_logprobs", "entropy")
    observed = ScoreRequest(1, (12, 25, 49), signals=("entropy",), generated_ends=(21, 49))
    requests = [replace(request, signals=names), observed]
    with torch.no_grad():
        expected = [plain_entropies(model, ids[each.row], each) for each in requests]
    if packing:
        model.set_attn_implementation("swap_rows")
    actor, scorer, _ = make_scorer(model, packing=packing, chunk=chunk)
    with torch.no_grad():
        log_probs = actor.eval()(ids, action_mask, mask)
    scored = scorer.forward(ids, action_mask, mask, requests, names)
    torch.testing.assert_close(scored.action_log_probs, log_probs, rtol=0, atol=1e-5)
    for found, plain in zip(scored.signals, expected, strict=True):
        torch.testing.assert_close(found["entropy"], plain, rtol=0, atol=1e-5)
    assert list(scored.signals[1]) == ["entropy"]
    alone = scorer.forward(ids, action_mask, mask, [observed], ("entropy",))
    torch.testing.assert_close(alone.signals[0]["entropy"], expected[1], rtol=0, atol=1e-5)
