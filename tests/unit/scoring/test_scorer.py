"""The scorer of saved responses; tests/unit/commands/test_score.py has what it computes."""

from statistics import fmean

import numpy as np
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


def test_the_answers_entropies_are_read_where_the_reward_is_made_of_them(model, tokenizer):
    config = SwapConfig(step_tokens=8, step_reward="potential")
    shared, slow = (
        Scorer(model, tokenizer, config, scoring) for scoring in ("shared_prefix", "per_prefix")
    )
    found = shared.score(*TRACE)
    for name in ("answer_logprobs", "answer_entropy"):
        assert found[name] == pytest.approx(slow.score(*TRACE)[name], abs=1e-9)
    # After the prompt alone, by torch's own entropy.
    prompt, branch = prompt_ids(tokenizer, TRACE[0]), answer_branch(tokenizer, CLOSE, TRACE[1])
    logits = model(torch.tensor([[*prompt, *branch.ids]])).logits[0, len(prompt) - 1 : -1]
    entropies = torch.distributions.Categorical(logits=logits).entropy()[list(branch.scored)]
    assert found["answer_entropy"][0] == pytest.approx(entropies.mean().item(), abs=1e-9)
    response = tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]
    traces = [shared.trace(prompt, response, TRACE[1], right) for right in (True, False)]
    assert len(traces[0].signals["answer_entropy"]) == 3 and not traces[1].signals
    assert [len(row) for row in swap_advantages(traces, config)] == [len(response)] * 2


def test_entropies_are_read_where_they_are_asked_for(model, tokenizer):
    scorer = Scorer(model, tokenizer, SwapConfig(step_tokens=8), entropy_temperature=0.7)
    found = scorer.score(*TRACE)
    prompt = prompt_ids(tokenizer, TRACE[0])
    response = tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 :]
    entropies = torch.distributions.Categorical(logits=logits / 0.7).entropy().tolist()
    first, last = (end + 1 for end in found["step_ends"])
    expected = [fmean(entropies[:first]), fmean(entropies[first:last])]
    assert found["entropy"] == pytest.approx(expected, abs=1e-9)
    assert len(found["answer_logprobs"]) == 3
    wrong = scorer.trace(prompt, response, TRACE[1], correct=False)
    assert wrong.signals["entropy"].tolist() == found["entropy"] and not wrong.answer_logprobs


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
    prompt = prompt_ids(tokenizer, TRACE[0])
    response = tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]
    model.train()
    trace = Scorer(model, tokenizer, config).trace(prompt, response, TRACE[1], correct=True)
    assert model.training
    model.eval()
    assert (trace.length, list(trace.step_ends)) == (len(response), scores["step_ends"])
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
    "lists": list,
    "tuples": tuple,
    "tensors": torch.tensor,
    "int32 tensors": lambda ids: torch.tensor(ids, dtype=torch.int32),
    "arrays": np.array,
    "lists of tensors": lambda ids: list(torch.tensor(ids)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_token_ids_of_any_kind_give_the_same_trace(model, tokenizer, kind):
    scorer = Scorer(model, tokenizer, SwapConfig(step_tokens=8))
    prompt = prompt_ids(tokenizer, TRACE[0])
    response = tokenizer(TRACE[2], add_special_tokens=False)["input_ids"]
    seen = [(10, tokenizer("Well. ", add_special_tokens=False)["input_ids"])]
    known = scorer.trace(prompt, response, "579", True, seen)
    held = KINDS[kind]
    observed = [(held([10])[0], held(seen[0][1]))]
    found = scorer.trace(held(prompt), held(response), 579, held([1])[0], observed)
    assert found == known and len(known.step_ends) >= 2
    states = scorer.state_trace(held(prompt), held(response), True).states
    assert torch.equal(states, scorer.state_trace(prompt, response, True).states)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"response": torch.tensor([[1, 2]])}, "response has several dimensions"),
        ({"response": torch.tensor([1.0, 2.0])}, r"response\[0\] is 1.0 \(float\); give whole"),
        ({"response": "a text"}, r"response is 'a text' \(str\); give a list, tensor"),
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
    end, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
    with pytest.raises(DataError, match=rf"ends with padding \(token {pad}\)"):
        Scorer(model, tokenizer).trace([1], [5, end, pad, pad], "5", True)
    tokenizer.pad_token = tokenizer.eos_token
    Scorer(model, tokenizer).trace([1], [5, end], "5", True)
    with pytest.raises(DataError, match=rf"ends with padding \(token {end}\)"):
        Scorer(model, tokenizer).trace([1], [5, end, end], "5", True)


def test_text_is_asked_for_where_ids_or_numbers_are_given(model, tokenizer):
    scorer = Scorer(model, tokenizer)
    with pytest.raises(DataError, match="problem is 5"):
        scorer.score(5, "5", "five")
    with pytest.raises(DataError, match=r"response\[0\] is 7, which is no turn"):
        scorer.score("What?", "5", [7, 8])
    with pytest.raises(DataError, match="the action of turn 0 is None"):
        scorer.score("What?", "5", [{"observation": "five"}])
