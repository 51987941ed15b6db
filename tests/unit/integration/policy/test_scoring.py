"""Signals beside OpenRLHF's log-probabilities, with its own Actor around small random models of
several families.
"""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from support.hidden_steps import slow_needs
from support.passes import Engine
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

from openrlhf_swap.config import RunConfig
from openrlhf_swap.integration.policy.chunked_actor import ChunkedActor
from openrlhf_swap.integration.policy.scorer import PolicyScorer
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
from openrlhf_swap.scoring.small_model import WORDS, small_model

TEMPERATURE = 0.6
BRANCH = AnswerBranch((3, 4, 5, 6), (False, True, True, True))
ALL = ("answer_logprobs", "entropy")


@pytest.fixture(autouse=True)
def uncompiled_entropies(monkeypatch):
    from openrlhf.models import actor

    monkeypatch.setattr(actor, "compute_entropy", actor.compute_entropy._torchdynamo_orig_callable)


def model_of(family):
    model = small_model(CONFIG_MAPPING[family](), AutoModelForCausalLM.from_config)
    model.config.use_cache = False  # as OpenRLHF leaves it
    return model


def make_scorer(model, packing=False, chunk=7):
    actor = ChunkedActor(Engine(model))
    actor.temperature = TEMPERATURE
    actor.packing_samples = packing
    actor.hold_logits_of(chunk)
    said = []
    args = SimpleNamespace(ds=SimpleNamespace(zero_stage=2), swap_run=RunConfig())
    return actor, PolicyScorer(actor, SimpleNamespace(args=args, print=said.append)), said


def micro_batch(*signals):
    """Two right-padded rows with four and three prefixes to score; a step of the second has
    observed something.
    """
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(0, WORDS, (2, 50), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, 44:] = 0
    requests = [
        ScoreRequest(0, (9, 20, 30, 43), BRANCH, signals),
        ScoreRequest(1, (12, 25, 49), BRANCH, signals, generated_ends=(21, 49)),
    ]
    return ids, mask[:, 1:], mask, requests


def plain_entropies(model, ids, request):
    """(K,) the mean entropy of each step's own tokens, from the softmax of each place."""
    probabilities = (model(ids[None]).logits[0].double() / TEMPERATURE).softmax(-1)
    entropies = -(probabilities * probabilities.log()).sum(-1)
    means = []
    for before, end in zip(request.prefix_ends[:-1], request.own_ends, strict=True):
        means.append(entropies[before:end].mean())
    return torch.stack(means)


@pytest.mark.parametrize(
    ("family", "packed_by", "adapted", "chunk"),
    [
        ("qwen2", None, False, 7),
        ("qwen2", None, False, 0),  # without chunks answers are scored in a pass of their own
        ("qwen2", "swap_rows", False, 7),
        ("gemma3_text", "sdpa", True, 7),  # windows
        ("gemma3_text", "swap_rows", True, 7),
        ("gpt_oss", None, False, 7),
        ("deepseek_v3", "swap_rows", True, 7),  # latent attention
        ("qwen3_5_text", None, True, 7),  # recurrent layers, which are refused with packing
        ("nemotron_h", None, False, 7),
        ("bloom", None, False, 7),
    ],
)
def test_one_forward_gives_log_probabilities_and_signals(family, packed_by, adapted, chunk):
    """Packing: the rows lie in one, without padding."""
    model = policy = model_of(family)
    if adapted:
        torch.manual_seed(0)
        lora = LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
        policy = get_peft_model(model, lora).eval()
    ids, actions, mask, requests = micro_batch(*ALL)
    expected = []
    with torch.no_grad():
        log_probs = make_scorer(policy)[0].eval()(ids, actions, mask)
        for request in requests:
            row = ids[request.row][mask[request.row].bool()]
            lengths = [end + 1 for end in request.prefix_ends]
            scores = read_per_prefix(policy, row, lengths, BRANCH)
            expected.append((scores, plain_entropies(policy, row, request)))

    if packed_by:
        model.set_attn_implementation(packed_by)
    actor, scorer, said = make_scorer(policy, packing=bool(packed_by), chunk=chunk)
    embedding = model.get_input_embeddings()
    with mock.patch.object(embedding, "forward", side_effect=embedding.forward) as embedded:
        scored = scorer.forward(ids, actions, mask, requests, ALL)
    if chunk and family != "bloom":
        # Seven branches of four tokens lie behind the rows.
        embedded.assert_called_once()
        tokens = int(mask.sum()) if packed_by else ids.numel()
        assert embedded.call_args.args[0].numel() == tokens + 7 * 4
    assert (family == "bloom") == bool(said)
    assert scorer.metrics == {"swap/scored_one_by_one": float(family == "bloom")}
    assert actor.training
    assert scored.action_log_probs.dtype == torch.float32
    difference = scored.action_log_probs - log_probs
    assert difference[actions.bool()].abs().max() < 1e-3
    for found, (scores, entropies) in zip(scored.signals, expected, strict=True):
        assert (found["answer_logprobs"] - scores).abs().max() < 1e-4
        assert (found["entropy"] - entropies).abs().max() < 1e-4


@pytest.mark.parametrize("chunk", [7, 0])
@pytest.mark.parametrize(
    ("family", "packing"), [("qwen2", False), ("gemma3_text", True), ("deepseek_v3", True)]
)
def test_need_is_read_behind_the_pass(family, packing, chunk):
    """At temperature 1, whatever the rollouts', beside the entropies of another response."""
    model = model_of(family)
    names = ("answer_logprobs", "need", "entropy")
    ids, actions, mask, (first, second) = micro_batch("answer_logprobs")
    requests = [
        replace(first, wanted=names[:2], need_window=2),
        replace(second, wanted=names[2:]),
    ]
    plain = make_scorer(model, packing)[1].forward(ids, actions, mask, [first])
    scored = make_scorer(model, packing, chunk)[1].forward(ids, actions, mask, requests, names)
    needed, other = scored.signals
    model.set_attn_implementation("eager")
    expected = slow_needs(model, ids[0], requests[0], 2)
    assert (needed["need"] - expected).abs().max() < 1e-4
    assert (needed["answer_logprobs"] - plain.signals[0]["answer_logprobs"]).abs().max() < 1e-5
    assert list(other) == ["entropy"]
    assert len(other["entropy"]) == 2
