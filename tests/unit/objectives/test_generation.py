"""What objectives change in prompts, sampling and single tokens, by hand."""

import json
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.objectives import MARKS, READER, assert_rows, batch, objective, rollout

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import Continuation, SamplingRequest
from openrlhf_swap.objectives.peers.formats import is_right
from openrlhf_swap.objectives.peers.vsrm import cut_places
from openrlhf_swap.rewards.answers import SUFFIX
from openrlhf_swap.rollouts.rollout import prompt_key

OPENED = "p<think>\n"  # a prompt whose thought the chat template opens


def test_thinkprune_lowers_its_limit_in_prompt_and_engine():
    method = objective("thinkprune", limits="40,30", stage_steps=2)
    prompt = f"<u>{method.rewrite_problem('1+1?', random.Random(0))}<a>"
    assert prompt == "<u>1+1? The output of the assistant should be within 40 tokens.<a>"
    limits = []
    for step in range(5):
        method.step = step
        (sampling,) = method.sampling(prompt, 4, 64)
        assert sampling.prompt == prompt.replace("40", str(sampling.max_new_tokens))
        limits.append(sampling.max_new_tokens)
    assert limits == [40, 40, 30, 30, 30]
    # The reward is plain correctness.
    group = [rollout(length=5), rollout(length=9, correct=False)]
    assert_rows(method.rewards(batch(group)), [[1, 0]])


def rewritten(method, problem, seeds):
    """A problem as the objective rewrites it with each of so many seeds."""
    return [method.rewrite_problem(problem, random.Random(seed)) for seed in range(seeds)]


def test_l1_draws_a_budget_once_a_row():
    method = objective("l1_exact", shortest=10, longest=20, instruction=" Box it.")
    texts = set(rewritten(method, "q", 200))
    assert texts == {f"q Box it. Think for {n} tokens." for n in range(10, 21)}
    # The instruction takes the place of the one of openrlhf_swap.prepare.
    assert set(rewritten(method, "q" + SUFFIX, 200)) == texts
    both = objective("l1_max", shortest=10, longest=20, instruction="")
    asked = rewritten(both, "q", 400)
    assert 150 < sum("maximum" in text for text in asked) < 250


def test_saber_asks_for_budgets_and_closes_thoughts():
    method = objective("saber")
    prompt = "p Answer without thinking.<a>"
    closed = f"{prompt}<think>\n\n</think>\n\n"
    assert method.eval_prompt(prompt) == closed
    assert method.sampling(f"{prompt}<think>\n", 2, 9)[0].prompt == closed
    assert set(rewritten(method, "q", 60)) == {
        "q",
        "q Answer without thinking.",
        "q Think for maximum 128 tokens.",
        "q Think for maximum 4096 tokens.",
    }


def test_hbpo_promises_a_budget_in_every_response():
    method = objective("hbpo")
    parts = method.sampling("<u>1+1?<a><think>\n", 8, 4096)
    promises = [f"I will answer the question with {n} tokens" for n in (512, 1024, 2048, 2560)]
    assert [part.forced for part in parts] == promises
    assert [part.count for part in parts] == [2] * 4
    forced = method.sampling("<u>1+1?<a>", 4, 4096)[0].forced
    assert forced == f"<think> {promises[0]}"
    with pytest.raises(ConfigError, match=r"--swap.hbpo.budgets is 'few'"):
        objective("hbpo", budgets="few")


@pytest.mark.parametrize(
    ("prompt", "text", "right"),
    [
        (OPENED, "a</think>b", True),
        (OPENED, "a</think>b</think>c", False),
        (OPENED, "<think>a</think>b", False),
        # Where the chat template does not open the thought, the model does: once.
        ("p", "<think>\na</think>b", True),
        ("p", "a</think>b", True),
        ("p", "<think><think>a</think>b", False),
        ("p", "<think>a</think>b<think>", False),
    ],
)
def test_adaptthink_counts_a_thought_in_its_place_only(prompt, text, right):
    assert is_right(True, prompt, text, MARKS) == right
    assert not is_right(False, prompt, text, MARKS)


@pytest.fixture
def reference_file(tmp_path):
    path = tmp_path / "reference.jsonl"
    path.write_text(json.dumps({"key": prompt_key("p"), "accuracy": 0.75}) + "\n")
    return path


def test_adaptthink_samples_both_ways_with_their_probabilities(reference_file):
    method = objective("adaptthink", reference=reference_file, no_thinking_tokens=100)
    # Where the template leaves the thought to the model, it is opened in the prompt, also for an
    # evaluation.
    both = [
        SamplingRequest(OPENED, 8, 100, "</think>", 0.5),
        SamplingRequest(OPENED, 8, 400, "Alright", 0.5),
    ]
    assert method.sampling("p", 16, 400) == both
    assert method.sampling(OPENED, 16, 400) == both
    assert method.eval_prompt("p") == OPENED
    method.check_prompts(["p"])
    with pytest.raises(DataError, match="lacks 1 of 2 prompts"):
        method.check_prompts(["p", "q"])


def test_a_reference_row_without_a_key_is_named_by_its_line(tmp_path):
    path = tmp_path / "reference.jsonl"
    path.write_text('{"key": "a", "accuracy": 0.5}\n{"accuracy": 0.75}\n')
    method = objective("adaptthink", reference=path)
    with pytest.raises(DataError, match=r"reference\.jsonl, whose line 2 lacks key or accuracy"):
        method.check_prompts(["p"])


def test_thinkless_needs_a_template_that_leaves_the_thought_open():
    objective("thinkless").check_prompts(["<u>1<a>"])
    with pytest.raises(DataError, match=r"--swap\.thinkless\.think is '<think>', with which the"):
        objective("thinkless").check_prompts(["<u>1<a><think>\n"])


def test_vsrm_cuts_before_sentences_that_contain_its_words():
    text = "Add 2. Is it so? Then wait, no.\nHmm so 4. Waiting is but 5"
    words = ["wait", "hmm", "Hmm", "but", "so"]
    # Behind "2.", "so?", the newline, and "4." (for "but": "Waiting" has a capital that is not in
    # the list).
    assert cut_places(text, words, 0, 1) == [6, 16, 32, 41]
    # "wait" is 16 characters behind the first cut, "Hmm" 16 behind the second and 26 behind the
    # first, "but" 21.
    assert cut_places(text, words, 0, 16) == [6, 16, 32, 41]
    assert cut_places(text, words, 0, 17) == [6, 32, 41]
    assert cut_places(text, words, 0, 22) == [6, 32]
    assert cut_places("2 but 3 but 4", ["but"], 0, 1) == [2, 8]  # no sentence ends: at the word
    places = {"first_characters": 0, "apart_characters": 1}
    method = objective("vsrm", words="wait,Hmm,so,but", answers=3, **places)
    asked = method.continuations(rollout(text + "#\\boxed{42}"), READER)
    # And at the end of the thought, of 58 characters.
    assert asked == [Continuation(kept, "</think>", 768, 3) for kept in (6, 16, 32, 41, len(text))]
    assert objective("vsrm").continuations(rollout(text + "#\\boxed{42}"), READER) == []


def test_vsrm_without_probes_adds_nothing():
    """`tests/conformance` has the sums of the others."""
    (term,) = objective("vsrm").token_advantages(batch([rollout("abcdef#\\boxed{42}")]))
    assert not term.any()


def test_vsrm_of_step_scores():
    # Steps end at 1, 3, 5; probabilities .25, .5, .5 there: .25 at the first end, nothing changes
    # at the second.
    logprobs = [-9.0, *torch.tensor([0.25, 0.5, 0.5]).log().tolist()]
    steps = replace(rollout("abcdef#\\boxed{42}"), step_ends=[1, 3, 5])
    scored = steps.with_signals(answer_logprobs=logprobs)
    method = objective("vsrm_scores")
    wrong = rollout("abcdef#\\boxed{41}", correct=False)
    (term,) = method.token_advantages(batch([scored, wrong]))
    assert_rows(term[0], [0.25, 0.25] + [0] * 15, 1e-6)
    assert not term[1].any()
    # .5 to .509 is noise of the scores; in front of a change it takes a share of it.
    scores = torch.tensor([0.5, 0.509, 0.609]).log()
    noisy = scored.with_signals(answer_logprobs=[-9.0, *scores.tolist()])
    (term,) = method.token_advantages(batch([noisy]))
    assert_rows(term[0, :5], [0.17, 0.17, 0.1, 0.1, 0], 1e-6)


def test_hbpos_budgets_share_a_group():
    args = SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=10))
    with pytest.raises(ConfigError, match=r"is 10, but --swap\.hbpo\.budgets has 4"):
        objective("hbpo").check(args)
    objective("hbpo", budgets="512,1024").check(args)


FOUR_STEPS = "a¶b¶c¶d#42$"


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        (FOUR_STEPS, [(0, 2), (2, 4), (4, 6), (6, 7)]),
        ("ab¶#42", [(0, 3)]),
        ("#42", []),
    ],
)
def test_sas_ends_steps_with_a_blank_line(text, steps):
    assert objective("sas").steps(rollout(text).response_ids, READER) == steps


def test_sas_takes_an_open_thought_for_wrong():
    """Of its five steps one in three is lost as of a wrong response: the most confident ones."""
    opened = rollout("a¶b¶c¶d¶e$")
    confidence = [-0.9, -0.9, -0.1, -0.1, -0.5, -0.5, -0.3, -0.3, -0.2, 0]
    opened = replace(opened, logprobs=torch.tensor(confidence))
    wrong = replace(rollout("a#42$", correct=False), logprobs=torch.zeros(5))
    right = replace(rollout("a#42$"), logprobs=torch.zeros(5))
    (term,) = objective("sas").token_advantages(batch([opened, wrong, right]))
    # One right of three: A = -.5774 of the wrong ones. ceil(.7 x 5) = 4 steps are kept.
    expected = [-0.57735] * 2 + [0] * 2 + [-0.57735] * 6
    assert_rows(term[0], expected, 1e-5)


def scored(text, length, gains, correct=True):
    """A response whose steps of ten tokens have these gains."""
    logprobs = [-9.0]
    for gain in gains:
        logprobs.append(logprobs[-1] + gain)
    ends = list(range(9, 10 * len(gains), 10))
    steps = replace(rollout(text, length, correct), step_ends=ends)
    return steps.with_signals(answer_logprobs=logprobs)


@pytest.mark.parametrize(("step", "waits"), [(501, False), (500, True)])
def test_attnpo(step, waits):
    # Lengths 40 and 80, p = 1/2, z = -1 and 1: R = 1 - .2 sigmoid(z) = .94621, .85379, 0, 0; A =
    # 4/3 (R - .45).
    short = scored("#" + "x" * 19, 40, [0.0, 4.0])
    long = scored("#" + "x" * 19, 80, [1.0, 0.0, 99.0])
    wrong = [scored("#x", 40, [1.0, 1.0], False)] * 2
    method = objective("attnpo")
    method.step = step
    (term,) = method.token_advantages(batch([short, long, *wrong]))
    first = 4 / 3 * (0.946212 - 0.45)
    second = 4 / 3 * (0.853788 - 0.45)
    # b = .25 x 19/45 = .105556 for the first one: its first step has the share 0, so .25 x 0 + .75.
    begun = first if waits else 0.75 * first
    assert_rows(term[0, [0, 9, 10, 19, 20, 39]], [begun] * 2 + [first] * 4, 1e-5)
    # b = .25 x 19/85 = .055882: shares .01, 0, .99: .75 + .25 x .01/.055882 and .75.
    early = [1, 1] if waits else [0.75 + 0.0025 / 0.0558824, 0.75]
    assert_rows(term[1, [0, 10, 20, 79]] / second, [*early, 1, 1], 1e-5)
    assert_rows(term[2, :40], [-0.6] * 40, 1e-6)


def test_attnpo_spares_the_useful_steps_of_a_long_answer():
    # All right, p = 1, whatever was cut off: A < 0 for the longest; its step with a share over b =
    # 1 x 19/85 pays nothing.
    group = [scored("#" + "x" * 19, length, [1.0, 9.0]) for length in (40, 40, 80)]
    (term,) = objective("attnpo").token_advantages(batch(group))
    assert term[2, 0] < 0
    assert not term[2, 10:20].any()
    assert term[2, 20] == term[2, 0]
    group = [replace(response, truncated=True) for response in group]
    assert torch.equal(objective("attnpo").token_advantages(batch(group))[0], term)
    # A thought that never closes, or closes twice, is wrong: of four p = 1/2, and R = 4/3 (.9, .9).
    group = [*group[:2], scored("x" * 20, 40, [1.0, 9.0]), scored("##" + "x" * 8, 40, [1.0, 9.0])]
    (term,) = objective("attnpo").token_advantages(batch(group))
    assert_rows(term[2:, :40], [[-0.6] * 40] * 2, 1e-6)
