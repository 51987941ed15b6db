"""Objectives that continue responses from their beginnings, against numbers of their code or worked out by hand."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.objectives import READER, assert_rows, batch, objective, rollout

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Continuation
from openrlhf_swap.objectives.sampling import cut_places, step_rewards


def probed(text, probes, correct=True):
    return replace(rollout(text, correct=correct), probes=probes)


@pytest.mark.parametrize(
    ("accuracies", "rewards"),
    [
        # Changes 0, .4, 0: .7 of the next one, itself, none to come.
        ([0.2, 0.2, 0.6, 0.6], [0.28, 0.4, 0]),
        # The change is five cuts behind the first one, four behind the second: .4 x .7^4.
        ([0.2] * 6 + [0.6, 0.6], [0, 0.09604, 0.1372, 0.196, 0.28, 0.4, 0]),
        ([0.6, 0.2], [-0.4]),
        ([0.5], []),
    ],
)
def test_vsrm_step_rewards(accuracies, rewards):
    assert step_rewards(accuracies, 1e-5) == pytest.approx(rewards, abs=1e-9)


def test_vsrm_cuts_before_sentences_that_contain_its_words():
    text = "Add 2. Is it so? Then wait, no.\nHmm so 4. Waiting is but 5"
    words = ["wait", "hmm", "Hmm", "but", "so"]
    # Behind "2.", "so?", the newline, and "4." (for "but": "Waiting" has a capital that is not in the list).
    assert cut_places(text, words, 0, 1) == [6, 16, 32, 41]
    assert cut_places(text, [*words, "Wait"], 0, 1) == [6, 16, 32, 41]  # in words, too
    assert cut_places(text, words, 14, 1) == [16, 32, 41]  # the first "so" is at 13
    # "wait" is 16 characters behind the first cut, "Hmm" 16 behind the second and 26 behind the first, "but" 21.
    assert cut_places(text, words, 0, 16) == [6, 16, 32, 41]
    assert cut_places(text, words, 0, 17) == [6, 32, 41]
    assert cut_places(text, words, 0, 22) == [6, 32]
    assert cut_places("2 but 3 but 4", ["but"], 0, 1) == [2, 8]  # no sentence ends: at the word
    method = objective("vsrm", words="wait,Hmm,so,but", first_characters=0, apart_characters=1, answers=3)
    asked = method.continuations(rollout(text + "#\\boxed{42}"), READER)
    # And at the end of the thought, of 58 characters.
    assert asked == [Continuation(kept, "</think>", 768, 3) for kept in (6, 16, 32, 41, len(text))]
    assert objective("vsrm").continuations(rollout(text + "#\\boxed{42}"), READER) == []


def test_vsrm():
    # Cuts after 1, 2 and 4 tokens: rewards .28, .4, 0; the sums to come are .68, .4, 0.
    group = [
        probed("abcdef#\\boxed{42}", [(1, 0.2), (2, 0.2), (4, 0.6), (6, 0.6)]),
        probed("abcdef#\\boxed{41}", [], correct=False),
        probed("abcdef#42", [(3, 0.2), (6, 0.0)]),
        probed("abcdef", [(3, 0.0), (6, 0.0)], correct=False),
        probed("\\boxed{4}#4", [], correct=False),  # a box in the thought is one
    ]
    method = objective("vsrm")
    assert_rows(method.rewards(batch(group)), [[1, 0, -9.5, -10, 0]])
    (term,) = method.token_advantages(batch(group))
    assert_rows(term[0], [0.68, 0.4] + [0] * 15)
    assert_rows(term[2], [-0.2] * 3 + [0] * 14)
    assert not term[[1, 3, 4]].any()
    assert (method.normaliser, method.outcome_weight, method.process_weight) == ("group", 1, 1)


def test_vsrm_of_step_scores():
    # Steps end at 1, 3, 5; probabilities .25, .5, .5 there: .25 at the first end, nothing changes at the second.
    logprobs = [-9.0, *torch.tensor([0.25, 0.5, 0.5]).log().tolist()]
    scored = replace(rollout("abcdef#\\boxed{42}"), step_ends=[1, 3, 5], answer_logprobs=logprobs)
    method = objective("vsrm_scores")
    (term,) = method.token_advantages(batch([scored, rollout("abcdef#\\boxed{41}", correct=False)]))
    assert_rows(term[0], [0.25, 0.25] + [0] * 15, 1e-6)
    assert not term[1].any() and method.scores_steps
    # .5 to .509 is noise of the scores; in front of a change it takes a share of it.
    noisy = replace(scored, answer_logprobs=[-9.0, *torch.tensor([0.5, 0.509, 0.609]).log().tolist()])
    (term,) = method.token_advantages(batch([noisy]))
    assert_rows(term[0, :5], [0.17, 0.17, 0.1, 0.1, 0], 1e-6)


def test_jet_continues_and_cuts_behind_the_box():
    method = objective("jet", shares="50", phrase="\\nEnough{end}\\boxed{", answer_tokens=5)
    (request,) = method.sampling("p", 4, 100)
    assert (request.count, request.max_new_tokens) == (2, 100)
    whole = rollout("thought#\\boxed{42}.", kept=19.0)
    # 26 characters with the end of the thought written out, half of them: 7 of the thought, and 6 in the end of it.
    assert method.continuations(whole, READER) == [Continuation(8, "\nEnough</think>\\boxed{", 5)]


def test_jet_ends_every_response_with_the_end_token():
    method = objective("jet", shares="50", phrase="\\nEnough{end}\\boxed{")

    def ended(text, **more):
        return READER.text(method.edit(rollout(text, **more), READER).response_ids)

    # The phrase opens the box: a "." behind it, in the answer's own words, cuts nothing.
    begun = "thou\nEnough#\\boxed{"
    assert ended(begun + "42}. And more.", kept=4.0) == "thou\nEnough</think>\\boxed{42}. And more.$"
    assert ended(begun + "42}. And more.$", kept=4.0) == "thou\nEnough</think>\\boxed{42}. And more.$"
    # A second box: its sentence is the last one; without a full stop nothing is cut.
    second = begun + "41}? No: \\boxed{42} it is. And more.$"
    assert ended(second, kept=4.0) == "thou\nEnough</think>\\boxed{41}? No: \\boxed{42} it is.$"
    assert ended(begun + "1} \\boxed{42} so\n", kept=4.0) == "thou\nEnough</think>\\boxed{1} \\boxed{42} so\n$"
    # A box in what was kept is none of the answer's.
    assert ended("\\boxed{1}\nEnough#\\boxed{42}. So", kept=9.0) == "\\boxed{1}\nEnough</think>\\boxed{42}. So$"
    # Whole responses: one that was cut off gives up its last token.
    assert ended("thought#42$", kept=11.0) == "thought</think>42$"
    assert ended("thought#42", kept=10.0, truncated=True) == "thought</think>4$"


def test_jet():
    # .9 c + .1 [box] + c (.05 + 1.14 (2000 - L)/1500): 2.19, 1.81, .1, 1.05; without a box .1 less.
    box = "#\\boxed{42}"
    lengths, correct = (500, 1000, 1500, 2000), (True, True, False, True)
    group = [rollout(box, length, right) for length, right in zip(lengths, correct, strict=True)]
    method = objective("jet")
    assert_rows(method.rewards(batch(group)), [[2.19, 1.81, 0.1, 1.05]], 1e-6)
    assert_rows(method.rewards(batch([rollout("#42", 50), rollout("#4", 50, False)])), [[0.95, 0]], 1e-6)
    assert_rows(method.rewards(batch([rollout(box, 50, False)] * 2)), [[0.1, 0.1]], 1e-6)
    assert method.reshapes_responses and method.normaliser == "group"


@pytest.mark.parametrize("shares", ["", "10,x", "0,50", "50,100"])
def test_jet_refuses_shares_that_are_none(shares):
    with pytest.raises(ConfigError, match=r"--swap\.jet\.shares is "):
        objective("jet", shares=shares)


def test_groups_of_jet_and_answers_of_s_grpo_must_fit():
    args = SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=8, max_new_tokens=512))
    with pytest.raises(ConfigError, match=r"n_samples_per_prompt is 8, but --swap\.jet\.shares makes 6 of a response"):
        objective("jet").check(args)
    objective("jet", shares="25,50,75").check(args)
    with pytest.raises(ConfigError, match=r"--swap\.s_grpo\.answer_tokens is 512, not less than"):
        objective("s_grpo").check(args)
    objective("s_grpo", answer_tokens=511).check(args)


def test_s_grpo():
    # The published order: wrong, right, right, and the whole one right: 0, 1, .5, .25; it stands first in the group.
    group = [rollout("x", correct=right, kept=kept) for right, kept in ((1, 9), (0, 2), (1, 5), (1, 7))]
    values = objective("s_grpo").rewards(batch(group))
    assert_rows(values, [[0.25, 0, 1, 0.5]])
    assert_rows(values - values.mean(), [[-0.1875, -0.4375, 0.5625, 0.0625]])
    assert_rows(objective("s_grpo").rewards(batch([rollout("x", correct=False, kept=1)] * 2)), [[0, 0]])


def test_s_grpo_leaves_the_thought_at_places_of_its_own():
    method = objective("s_grpo", answer_tokens=7, phrase="Stop\\n{end}")
    (request,) = method.sampling("p", 6, 100)
    assert request.count == 1
    whole = rollout("a thought#\\boxed{42}")
    asked = method.continuations(whole, READER)
    assert asked == method.continuations(whole, READER)  # the same when a step is done again
    places = [one.kept for one in asked]
    assert len(places) == 5 and places == sorted(places) and places[0] >= 0 and places[-1] < len("a thought")
    assert {one.suffix for one in asked} == {"Stop\n</think>"}
    assert method.continuations(rollout("b thought#\\boxed{42}"), READER) != asked
