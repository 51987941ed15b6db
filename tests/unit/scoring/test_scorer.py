"""The scorer of saved responses; tests/unit/commands/test_score.py has what it computes."""

from statistics import fmean
from unittest import mock

import numpy as np
import pytest
import torch
from support.hidden_steps import slow_needs
from support.paths import POLICY
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig

from openrlhf_swap import SwapConfig, swap_advantages
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.rollouts.families import R1, prompt_ids
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, answer_branch
from openrlhf_swap.scoring.scorer import Scorer

CLOSE = R1.close_template
TRACE = ("What is 123 + 456?", "579", "ones: 3+6+0=09\ntens: 2+5+0=07\n</think>")
CONFIG = SwapConfig(step_tokens=8)  # two steps, so three prefixes
BACKENDS = ("shared_prefix", "per_prefix")


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float64).eval()


@pytest.fixture(scope="module")
def prompt(tokenizer):
    return prompt_ids(tokenizer, TRACE[0])


@pytest.fixture(scope="module")
def response(tokenizer):
    return tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]


def entropies_of(logits):
    return torch.distributions.Categorical(logits=logits).entropy()


NEED = CONFIG.replaced(step_reward="need", need_window=1)


@pytest.fixture(scope="module")
def eager_model():
    options = {"dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(POLICY, **options).eval()


def test_need_is_read_where_the_reward_is_made_of_it(eager_model, tokenizer, prompt, response):
    scorer = Scorer(eager_model, tokenizer, NEED)
    found = scorer.score(*TRACE)
    ends = [len(prompt) - 1, *(len(prompt) + end for end in found["step_ends"])]
    request = ScoreRequest(0, tuple(ends), answer_branch(tokenizer, CLOSE, TRACE[1]))
    expected = slow_needs(eager_model, torch.tensor(prompt + response), request, window=1)
    assert found["need"] == pytest.approx(expected.tolist(), abs=1e-5)
    trace = scorer.trace(prompt, response, TRACE[1], correct=True)
    assert trace.signals["need"].tolist() == pytest.approx(found["need"], abs=1e-6)
    wrong = scorer.trace(prompt, response, TRACE[1], correct=False)
    assert "need" not in wrong.signals
    rows = swap_advantages([trace, wrong], NEED)
    assert [len(row) for row in rows] == [len(response)] * 2


def test_need_of_a_response_without_steps(eager_model, tokenizer):
    scorer = Scorer(eager_model, tokenizer, NEED)
    alone = scorer.score(TRACE[0], TRACE[1], "</think>\n\n\\boxed{579}")
    assert alone["need"] == alone["steps"] == []
    assert len(alone["answer_logprobs"]) == 1


def test_both_backends_read_the_same_scores(model, tokenizer):
    shared = Scorer(model, tokenizer, CONFIG, "shared_prefix").score(*TRACE)
    slow = Scorer(model, tokenizer, CONFIG, "per_prefix").score(*TRACE)
    assert len(shared["answer_logprobs"]) == len(shared["steps"]) + 1 == 3
    assert shared["answer_logprobs"] == pytest.approx(slow["answer_logprobs"], abs=1e-9)


def test_entropies_are_read_where_they_are_asked_for(model, tokenizer, prompt, response):
    scorer = Scorer(model, tokenizer, CONFIG, entropy_temperature=0.7)
    found = scorer.score(*TRACE)
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 :]
    entropies = entropies_of(logits / 0.7).tolist()
    first, last = (end + 1 for end in found["step_ends"])
    expected = [fmean(entropies[:first]), fmean(entropies[first:last])]
    assert found["entropy"] == pytest.approx(expected, abs=1e-9)
    assert len(found["answer_logprobs"]) == 3
    wrong = scorer.trace(prompt, response, TRACE[1], correct=False)
    assert wrong.signals["entropy"].tolist() == found["entropy"]
    assert not wrong.answer_logprobs


def test_a_response_takes_one_forward(model, tokenizer, prompt, response):
    """Of its tokens, and of three branches of close template and answer."""
    scorer = Scorer(model, tokenizer, CONFIG)
    with mock.patch.object(model.model, "forward", side_effect=model.model.forward) as forward:
        scorer.score(*TRACE)
    forward.assert_called_once()
    branch = tokenizer(CLOSE + TRACE[1], add_special_tokens=False)["input_ids"]
    tokens = len(prompt) + len(response) + 3 * len(branch)
    assert forward.call_args.kwargs["input_ids"].shape == (1, tokens)


def test_a_model_that_cannot_be_branched_is_scored_prefix_by_prefix(tokenizer):
    shape = {"vocab_size": len(tokenizer), "hidden_size": 32, "n_layer": 1, "n_head": 2}
    model = AutoModelForCausalLM.from_config(BloomConfig(**shape), attn_implementation="eager")
    scorer = Scorer(model.eval(), tokenizer, CONFIG)
    assert len(scorer.score(*TRACE)["answer_logprobs"]) == 3
    said = "(per_prefix), because branching a small BloomForCausalLM failed"
    assert any(said in message for message in scorer.messages)


def test_what_cannot_be_scored_is_refused(model, tokenizer):
    scorer = Scorer(model, tokenizer, CONFIG)
    with pytest.raises(DataError, match="longer than the model's context of"):
        scorer.score(TRACE[0], TRACE[1], TRACE[2] * 200)
    with pytest.raises(DataError, match="is empty"):
        scorer.score(TRACE[0], "$ $", TRACE[2])
    with pytest.raises(DataError, match="problem is 5"):
        scorer.score(5, "5", "five")
    with pytest.raises(DataError, match=r"response\[0\] is 7, which is no turn"):
        scorer.score("What?", "5", [7, 8])


@pytest.mark.parametrize("missing", ["model", "tokenizer"])
def test_what_is_not_loaded_is_refused(model, tokenizer, missing):
    given = {"model": model, "tokenizer": tokenizer}
    with pytest.raises(ConfigError, match=f"^{missing} is some/name, .*from_pretrained returns$"):
        Scorer(**{**given, missing: "some/name"})
    with pytest.raises(ConfigError, match=f"^{missing} is NoneType, which is no loaded {missing};"):
        Scorer(**{**given, missing: None})


def test_a_trace_holds_what_is_scored_and_leaves_the_model_in_training(
    model, tokenizer, prompt, response
):
    scorer = Scorer(model, tokenizer, CONFIG)
    scores = scorer.score(*TRACE)
    model.train()
    trace = scorer.trace(prompt, response, TRACE[1], correct=True)
    assert model.training
    model.eval()
    assert trace.length == len(response)
    assert list(trace.step_ends) == scores["step_ends"]
    assert trace.answer_logprobs == pytest.approx(scores["answer_logprobs"], abs=1e-6)
    wrong = scorer.trace(prompt, response, TRACE[1], correct=False)
    assert wrong.length == len(response)
    assert not wrong.correct
    assert not wrong.step_ends


def test_a_model_under_autocast_is_scored(tokenizer):
    """As trainers run float32 weights in mixed precision: by a wrapper around its forward."""
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    exact = Scorer(model, tokenizer, CONFIG).score(*TRACE)["answer_logprobs"]
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    for scoring in BACKENDS:
        found = Scorer(model, tokenizer, CONFIG, scoring).score(*TRACE)["answer_logprobs"]
        assert found == pytest.approx(exact, abs=0.1)
        assert found != exact


def test_a_token_across_the_seam_is_scored():
    """In Qwen's vocabulary `{-` is one token: it carries part of the answer."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={"{": 0, "-": 1, "7": 2, "{-": 3}, merges=[("{", "-")]))
    backend.decoder = decoders.Fuse()
    joint = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert answer_branch(joint, "{", "-7") == AnswerBranch((3, 2), (True, True))
    assert answer_branch(joint, "{", "7") == AnswerBranch((0, 2), (False, True))


KINDS = {
    "tuples": tuple,
    "int32 tensors": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "arrays": np.array,
    "lists of tensors": lambda ids: list(torch.tensor(ids)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_of_any_kind_give_the_same_trace(model, tokenizer, prompt, response, kind):
    scorer = Scorer(model, tokenizer, CONFIG)
    held = KINDS[kind]
    seen = tokenizer("Well. ", add_special_tokens=False)["input_ids"]
    known = scorer.trace(prompt, response, "579", True, [(10, seen)])
    observed = [(held([10])[0], held(seen))]
    found = scorer.trace(held(prompt), held(response), 579, held([1])[0], observed)
    assert found == known
    assert len(known.step_ends) >= 2


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"response": torch.tensor([[1, 2]])}, "response has several dimensions"),
        ({"response": torch.tensor([1.0, 2.0])}, r"response\[0\] is 1.0 \(float\); give whole"),
        ({"response": [3, -100]}, r"response\[1\] is -100 \(int\); give .* of at least 0"),
        ({"prompt": {"input_ids": [1]}}, r"prompt\[0\] is 'input_ids'"),
        ({"answer": None}, "answer is None .*give a text, or a number"),
        ({"correct": torch.tensor(0.5)}, "correct is 0.5, neither right nor wrong"),
        ({"observations": [(1.5, [1])]}, r"observations\[0\]\[0\] is 1.5"),
    ],
)
def test_what_are_no_token_ids_is_refused(model, tokenizer, changed, message):
    given = {"prompt": [1, 2], "response": [3, 4], "answer": "5", "correct": True, **changed}
    with pytest.raises(ValueError, match=message):
        Scorer(model, tokenizer).trace(**given)


def test_padding_is_refused_whether_or_not_the_end_token_pads(model):
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    end = tokenizer.eos_token_id
    pad = tokenizer.pad_token_id
    with pytest.raises(DataError, match=rf"ends with padding \(token {pad}\)"):
        Scorer(model, tokenizer).trace([1], [5, end, pad, pad], "5", True)
    tokenizer.pad_token = tokenizer.eos_token
    Scorer(model, tokenizer).trace([1], [5, end], "5", True)
    with pytest.raises(DataError, match=rf"ends with padding \(token {end}\)"):
        Scorer(model, tokenizer).trace([1], [5, end, end], "5", True)
