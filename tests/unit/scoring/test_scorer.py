"""The scorer of saved responses; tests/unit/commands/test_score.py has what it computes."""

import pytest
import torch
from support.hidden_steps import slow_needs
from support.paths import POLICY
from transformers import AutoModelForCausalLM, AutoTokenizer, BloomConfig

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages
from openrlhf_swap.errors import DataError
from openrlhf_swap.rollouts.families import R1, prompt_ids
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, answer_branch
from openrlhf_swap.scoring.scorer import Scorer

CLOSE = R1.close_template
TRACE = ("What is 123 + 456?", "579", "ones: 3+6+0=09\ntens: 2+5+0=07\n</think>")


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float64).eval()


def test_both_backends_agree(model, tokenizer):
    config = SwapConfig(step_tokens=8)
    shared, slow = (
        Scorer(model, tokenizer, config, scoring).score(*TRACE)
        for scoring in ("shared_prefix", "per_prefix")
    )
    assert len(shared["answer_logprobs"]) == len(shared["steps"]) + 1 == 3
    assert shared["answer_logprobs"] == pytest.approx(slow["answer_logprobs"], abs=1e-9)


def test_need_is_read_where_the_reward_is_made_of_it(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(
        POLICY, dtype=torch.float32, attn_implementation="eager"
    )
    config = SwapConfig(step_tokens=8, step_reward="need", need_window=1)
    scorer = Scorer(model, tokenizer, config)
    found = scorer.score(*TRACE)
    prompt = prompt_ids(tokenizer, TRACE[0])
    response = tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]
    ends = (len(prompt) - 1, *(len(prompt) + end for end in found["step_ends"]))
    request = ScoreRequest(0, ends, answer_branch(tokenizer, CLOSE, TRACE[1]))
    expected = slow_needs(model.eval(), torch.tensor(prompt + response), request, window=1)
    assert found["need"] == pytest.approx(expected.tolist(), abs=1e-5)
    trace = scorer.trace(prompt, response, TRACE[1], correct=True)
    assert trace.signals["need"].tolist() == pytest.approx(found["need"], abs=1e-6)
    assert "need" not in scorer.trace(prompt, response, TRACE[1], correct=False).signals
    alone = scorer.score(TRACE[0], TRACE[1], "</think>\n\n\\boxed{579}")
    assert (alone["need"], alone["steps"], len(alone["answer_logprobs"])) == ([], [], 1)
    rows = swap_advantages([trace, StepTrace(9, False)], config)
    assert [len(row) for row in rows] == [len(response), 9]


def test_a_response_takes_one_forward(model, tokenizer):
    """Of its tokens, and of three branches of close template and answer."""
    scorer, seen = Scorer(model, tokenizer, SwapConfig(step_tokens=8)), []
    hook = model.model.register_forward_pre_hook(
        lambda _model, _inputs, given: seen.append(given["input_ids"].shape), with_kwargs=True
    )
    scorer.score(*TRACE)
    hook.remove()
    response, close = (
        tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in (TRACE[2], CLOSE + TRACE[1])
    )
    assert seen == [(1, len(prompt_ids(tokenizer, TRACE[0])) + len(response) + 3 * len(close))]


def test_without_a_template_the_prompt_begins_as_any_text(model):
    """As in evaluation: a tokenizer that adds a beginning-of-text token does so here."""
    from tokenizers import processors

    tokenizer, without_processor = (AutoTokenizer.from_pretrained(POLICY) for _ in range(2))
    tokenizer.chat_template = without_processor.chat_template = None
    config = SwapConfig(step_tokens=8, close_template="</think>")
    plain = Scorer(model, tokenizer, config).score(*TRACE)
    first = tokenizer.convert_ids_to_tokens(0)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A", special_tokens=[(first, 0)]
    )
    begun = Scorer(model, tokenizer, config).score(*TRACE)
    spelled_out = Scorer(model, without_processor, config).score(first + TRACE[0], *TRACE[1:])
    assert begun["answer_logprobs"] == pytest.approx(spelled_out["answer_logprobs"], abs=1e-12)
    assert begun["answer_logprobs"] != pytest.approx(plain["answer_logprobs"], abs=1e-6)


def test_an_answer_is_never_scored_after_the_end_of_the_text(model, tokenizer):
    scorer = Scorer(model, tokenizer, SwapConfig(step_tokens=8))
    problem, answer, _ = TRACE
    thought = "ones: 3+6+0=09\ntens: 2+5+0=07\n"
    cut_off, stated = (
        scorer.score(problem, answer, thought + rest) for rest in ("", r"It is \boxed{579}.<|end|>")
    )
    assert "".join(stated["steps"]) == thought
    assert stated["step_ends"] == cut_off["step_ends"]
    assert stated["answer_logprobs"] == pytest.approx(cut_off["answer_logprobs"], abs=1e-9)


def test_a_model_that_cannot_be_branched_is_scored_prefix_by_prefix(tokenizer):
    model = AutoModelForCausalLM.from_config(
        BloomConfig(vocab_size=len(tokenizer), hidden_size=32, n_layer=1, n_head=2),
        attn_implementation="eager",
    ).eval()
    scorer = Scorer(model, tokenizer, SwapConfig(step_tokens=8))
    scores, said = scorer.score(*TRACE), "\n".join(scorer.messages)
    assert said.startswith("thought: '<think>' to '</think>' (r1, opened by the chat template); ")
    assert "\nscoring each prefix in a forward of its own" in said
    assert "(per_prefix), because branching a small BloomForCausalLM failed" in said
    assert len(scores["answer_logprobs"]) == 3


def test_what_cannot_be_scored_is_refused(model, tokenizer):
    scorer = Scorer(model, tokenizer, SwapConfig(step_tokens=8))
    with pytest.raises(DataError, match="longer than the model's context of"):
        scorer.score(TRACE[0], TRACE[1], TRACE[2] * 200)
    with pytest.raises(DataError, match="is empty"):
        scorer.score(TRACE[0], "$ $", TRACE[2])


def test_a_trace_holds_what_is_scored_of_the_ids_and_leaves_the_model_in_training(model, tokenizer):
    config = SwapConfig(step_tokens=8)
    scores = Scorer(model, tokenizer, config).score(*TRACE)
    prompt, response = (
        prompt_ids(tokenizer, TRACE[0]),
        tokenizer(TRACE[2], add_special_tokens=False)["input_ids"],
    )
    model.train()
    trace = Scorer(model, tokenizer, config).trace(prompt, response, TRACE[1], correct=True)
    assert model.training
    model.eval()
    assert (trace.length, trace.correct, list(trace.step_ends)) == (
        len(response),
        True,
        scores["step_ends"],
    )
    assert trace.answer_logprobs == pytest.approx(scores["answer_logprobs"], abs=1e-6)
    wrong = Scorer(model, tokenizer, config).trace(prompt, response, TRACE[1], correct=False)
    assert (wrong.length, wrong.correct, list(wrong.step_ends)) == (len(response), False, [])


def test_a_model_under_autocast_is_scored(tokenizer):
    """As trainers run float32 weights in mixed precision: by a wrapper around the model's own
    forward.
    """
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    config = SwapConfig(step_tokens=8)
    exact = Scorer(model, tokenizer, config).score(*TRACE)["answer_logprobs"]
    model.forward = torch.autocast("cpu", dtype=torch.bfloat16)(model.forward)
    for scoring in ("shared_prefix", "per_prefix"):
        found = Scorer(model, tokenizer, config, scoring).score(*TRACE)["answer_logprobs"]
        assert found == pytest.approx(exact, abs=0.1) and found != exact


def test_only_the_answers_tokens_are_scored(tokenizer):
    branch = answer_branch(tokenizer, CLOSE, r"$\boxed{579}$")
    text = tokenizer.decode(branch.ids)
    scored = tokenizer.decode(
        [i for i, used in zip(branch.ids, branch.scored, strict=True) if used]
    )
    assert text == CLOSE + "579"
    assert scored == "579"


def test_a_token_across_the_seam_is_scored():
    """In Qwen's vocabulary `{-` is one token: it carries part of the answer."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={"{": 0, "-": 1, "7": 2, "{-": 3}, merges=[("{", "-")]))
    backend.decoder = decoders.Fuse()
    joint = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert answer_branch(joint, "{", "-7") == AnswerBranch((3, 2), (True, True))
    assert answer_branch(joint, "{", "7") == AnswerBranch((0, 2), (False, True))
