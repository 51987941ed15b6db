"""Objectives that change what is generated, against numbers of their code or worked out by hand."""

import json
import math
import random
import statistics
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.objectives import (
    MARKS,
    READER,
    RIGHT,
    UNBOXED,
    assert_rows,
    batch,
    group,
    objective,
    restored,
    rewards,
    rollout,
)

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import Continuation
from openrlhf_swap.objectives.formats import is_right
from openrlhf_swap.objectives.vsrm import cut_places, step_rewards
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
    assert_rows(
        method.rewards(batch([rollout(length=5), rollout(length=9, correct=False)])), [[1, 0]]
    )


EXACT = "q Think for 1000 tokens.<a>"

MAXIMUM = "q Think for maximum 1000 tokens.<a>"


def test_l1_exact():
    # n = 1000, alpha = .0003, L = 1300: 300 tokens off cost .09: right .91, wrong -.09. L = 700 the
    # same.
    group = [rollout(RIGHT, 1300, prompt=EXACT), rollout(RIGHT, 1300, prompt=EXACT, correct=False)]
    group.append(rollout(RIGHT, 700, prompt=EXACT))
    # A thought that never closes is wrong, whatever it boxes.
    group.append(rollout("\\boxed{42}", 700, prompt=EXACT))
    assert_rows(objective("l1_exact").rewards(batch(group)), [[0.91, -0.09, 0.91, -0.09]])


def test_l1_max():
    # n = 1000, slope 1/1000, delta .5: L = 800 -> .7, 1200 -> .3, 1500 -> 0, 1600 -> clipped: 0,
    # 400 -> clipped: 1; wrong -> 0. A row with an exact budget is scored as L1-Exact.
    lengths = (800, 1200, 1500, 1600, 400)
    group = [rollout(RIGHT, n, prompt=MAXIMUM) for n in lengths]
    group.append(rollout(RIGHT, 800, prompt=MAXIMUM, correct=False))
    group.append(rollout(RIGHT, 1300, prompt=EXACT))
    group.append(rollout("\\boxed{42}", 800, prompt=MAXIMUM))
    assert_rows(objective("l1_max").rewards(batch(group)), [[0.7, 0.3, 0, 0, 1, 0, 0.91, 0]])


def test_l1_draws_a_budget_once_a_row():
    method = objective("l1_exact", shortest=10, longest=20, instruction=" Box it.")
    texts = {method.rewrite_problem("q", random.Random(seed)) for seed in range(200)}
    assert texts == {f"q Box it. Think for {n} tokens." for n in range(10, 21)}
    # The instruction takes the place of the one of openrlhf_swap.prepare.
    again = {method.rewrite_problem("q" + SUFFIX, random.Random(seed)) for seed in range(200)}
    assert again == texts
    both = objective("l1_max", shortest=10, longest=20, instruction="")
    maximum = sum(
        "maximum" in both.rewrite_problem("q", random.Random(seed)) for seed in range(400)
    )
    assert 150 < maximum < 250


def test_saber():
    limited = "p Think for maximum 128 tokens.<a><think>\n"
    # Thoughts of 128, 129, 129 tokens; the newline before the end does not count; an open one.
    four = [
        rollout("#\\boxed{42}", 139, prompt=limited),
        rollout("#\\boxed{42}", 140, prompt=limited),
    ]
    four.append(rollout("#\\boxed{42}", 140, False, prompt=limited))
    four.append(rollout("\n#\\boxed{42}", 140, prompt=limited))
    four.append(rollout("\\boxed{42}", 20, prompt=limited))
    assert_rows(rewards("saber", four), [[1, 0.6, -0.4, 1, -0.2]])
    # Without a limit, and with a thought that the prompt has closed.
    method = objective("saber")
    closed = method.eval_prompt("p Answer without thinking.<a>")
    assert closed == "p Answer without thinking.<a><think>\n\n</think>\n\n"
    assert method.sampling("p Answer without thinking.<a><think>\n", 2, 9)[0].prompt == closed
    both = [rollout(RIGHT, 900, prompt="p<a>"), rollout("\\boxed{42}", 900, prompt=closed)]
    both.append(rollout("#\\boxed{42}", 900, prompt=closed))
    assert_rows(method.rewards(batch(both)), [[1, 1, -0.2]])
    # Every budget is asked for.
    texts = {method.rewrite_problem("q", random.Random(seed)) for seed in range(60)}
    sentences = (
        "",
        " Answer without thinking.",
        " Think for maximum 128 tokens.",
        " Think for maximum 4096 tokens.",
    )
    assert texts == {"q" + sentence for sentence in sentences}


def test_hbpo_promises_a_budget_in_every_response():
    method = objective("hbpo")
    parts = method.sampling("<u>1+1?<a><think>\n", 8, 4096)
    assert [(part.count, part.forced.split()[-2]) for part in parts] == [
        (2, n) for n in ("512", "1024", "2048", "2560")
    ]
    assert parts[0].forced == "I will answer the question with 512 tokens"
    assert (
        method.sampling("<u>1+1?<a>", 4, 4096)[0].forced
        == "<think> I will answer the question with 512 tokens"
    )
    with pytest.raises(
        ConfigError, match=r"n_samples_per_prompt is 6, but --swap.hbpo.budgets has 4"
    ):
        method.check(SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=6)))
    with pytest.raises(ConfigError, match=r"--swap.hbpo.budgets is 'few'"):
        objective("hbpo", budgets="few")


def test_hbpo():
    # f(512) = 3.9231, f(1024) = 3.6955. 1000 for 512: f(1000) - 488/4096 = 3.5903; 400: 3.9257, at
    # most 3.9231. 1100 for 1024: 4 cos(pi 1100/8192) - 76/4096 = 3.6290; one without the format:
    # -1.
    both = [rollout(RIGHT, 1000, part=0), rollout(RIGHT, 400, part=0), rollout(RIGHT, 1100, part=1)]
    both.append(rollout(UNBOXED, 1100, part=1))
    earned = [3.5903, 3.9231, 4 * math.cos(math.pi * 1100 / 8192) - 76 / 4096, -1]
    mean, deviation = statistics.fmean(earned), statistics.stdev(earned)
    intra = [(3.5903 + 3.9231) / 2 - 3.9231] * 2 + [(earned[2] - 1) / 2 - 3.6955] * 2
    expected = [(r - mean) / deviation + 2 * term for r, term in zip(earned, intra, strict=True)]
    assert_rows(rewards("hbpo", both, budgets="512,1024"), [expected], 2e-4)
    # Of two ends of a thought the first one counts: what stands between them has a box, or has
    # none.
    two = [rollout("a#\\boxed{42}#b", 400, part=0), rollout("a#b#\\boxed{42}", 400, part=0)]
    earned = [
        3.9231 * 0.5**0.5 / 2 * 2,
        0,
    ]  # as unequal rewards, of 3.9231 and -1: A = .7071 and -.7071
    intra = 2 * ((3.9231 - 1) / 2 - 3.9231)
    assert_rows(
        rewards("hbpo", two, budgets="512"), [[0.5**0.5 + intra, -(0.5**0.5) + intra]], 2e-4
    )
    # Wrong, and right beyond the longest: 0.
    nothing = [rollout(RIGHT, 400, False, part=0), rollout(RIGHT, 4097, part=0)]
    assert_rows(rewards("hbpo", nothing, budgets="512"), [[-2 * 3.9231] * 2], 2e-4)


@pytest.mark.parametrize(
    ("prompt", "text", "right"),
    [
        (OPENED, "a</think>b", True),
        (OPENED, "a", False),
        (OPENED, "a</think>b</think>c", False),
        (OPENED, "<think>a</think>b", False),
        # Where the chat template does not open the thought, the model does: once.
        ("p", "<think>\na</think>b", True),
        ("p", "\n<think>a</think>b", True),
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


def test_adaptthink_rewards(reference_file):
    # Reference accuracy .75, bonus .05. No thinking: right .3, wrong -.7. Thinking: right .25,
    # wrong -.75. A second `</think>`, or a `<think>`, makes a response wrong.
    method = objective("adaptthink", reference=reference_file)
    group = [
        rollout("#\\boxed{42}", prompt=OPENED, part=0),
        rollout("#\\boxed{1}", prompt=OPENED, correct=False, part=0),
        rollout(RIGHT, prompt=OPENED, part=1),
        rollout(RIGHT, prompt=OPENED, correct=False, part=1),
        rollout("#" + RIGHT, prompt=OPENED, part=0),
        rollout("<think>" + RIGHT, prompt=OPENED, part=1),
    ]
    assert_rows(method.rewards(batch(group)), [[0.3, -0.7, 0.25, -0.75, -0.7, -0.75]])
    assert method.normaliser == "none"


def test_adaptthink_samples_both_ways_with_their_probabilities(reference_file):
    method = objective("adaptthink", reference=reference_file, no_thinking_tokens=100)
    without, thinking = method.sampling("p", 16, 400)
    assert (without.count, without.forced, without.max_new_tokens, without.chance) == (
        8,
        "</think>",
        100,
        0.5,
    )
    # The template leaves the thought to the model: it is opened in the prompt, for an evaluation as
    # well.
    assert without.prompt == thinking.prompt == method.eval_prompt("p") == OPENED
    assert method.sampling(OPENED, 16, 400)[0].prompt == OPENED
    assert (thinking.count, thinking.forced, thinking.max_new_tokens, thinking.chance) == (
        8,
        "Alright",
        400,
        0.5,
    )
    free = objective(
        "adaptthink", reference=reference_file, thinking_start="", no_thinking_share=0.25
    )
    assert [(part.forced, part.chance) for part in free.sampling("p", 16, 400)] == [
        ("</think>", 0.25),
        ("", 0.75),
    ]


def test_adaptthink_needs_an_accuracy_for_every_prompt(reference_file):
    method = objective("adaptthink", reference=reference_file)
    method.check_prompts(["p"])
    with pytest.raises(DataError, match="lacks 1 of 2 prompts"):
        method.check_prompts(["p", "q"])


def test_thinkless():
    # Mark, answer and length: short right 1, thought right .5, wrong -1, no mark -1; mean -.125.
    method = objective("thinkless", short="s", think="t")
    group = [rollout("sab"), rollout("tab#d"), rollout("sa", correct=False), rollout("ab")]
    assert_rows(method.rewards(batch(group)), [[1, 0.5, -1, -1]])
    # A thought that never closes is wrong.
    assert_rows(method.rewards(batch([rollout("tabcd"), rollout("sab")])), [[-1, 1]])
    # Lengths 3 and 5: B = 2, T = 8. The first token weighs .001 8/2 = .004, the others 8/6.
    (term,) = method.token_advantages(batch([rollout("sab"), rollout("tab#d")]))
    assert_rows(
        term,
        [[0.25 * w for w in [0.004] + [4 / 3] * 4], [-0.25 * w for w in [0.004] + [4 / 3] * 4]],
    )
    # The mean over all tokens: .001 times the mean of first tokens, and the mean of the others.
    used = torch.cat([term[0, :3], term[1]])
    assert used.mean().item() == pytest.approx(0.001 * 0 + (2 * 0.25 - 4 * 0.25) / 6)
    with pytest.raises(
        DataError, match=r"--swap\.thinkless\.think is '<think>', with which the chat template ends"
    ):
        objective("thinkless").check_prompts(["<u>1<a><think>\n"])
    objective("thinkless").check_prompts(["<u>1<a>"])


def test_autothink():
    method = objective("autothink", second_stage=2, third_stage=4)
    (request,) = method.sampling("<u>1?<a><think>\n", 4, 99)
    assert (request.prompt, request.count) == ("<u>1?<a><think>\n...\n", 4)
    assert method.eval_prompt("<u>1?<a>") == "<u>1?<a><think>\n...\n"
    # Three of four think: q = .75, d = .5. Thought right 1 - .5, wrong 0 - .5; without: q = .25, d
    # = 0: 2.
    box, wrong_box = "\\boxed{4}", "\\boxed{5}"
    group = [
        rollout(f"ab#{box}"),
        rollout(f"abc#{box}"),
        rollout(f"ab#{wrong_box}", correct=False),
        rollout(f"#{box}"),
    ]
    assert_rows(method.rewards(batch(group)), [[0.5, 0.5, -0.5, 2]])
    wrong = rollout(f"#{wrong_box}", correct=False)
    assert_rows(
        method.rewards(batch([rollout(f"#{box}"), wrong, wrong, rollout(f"a#{box}")])),
        [[1.5, -1.5, -1.5, 1]],
    )
    # Half thinks: no share is over 1/2. Without a box, or with an open thought, 0 and wrong;
    # repeating itself -2.
    mixed = [rollout("#4"), rollout(f"a{box}"), rollout(f"a#{box}")]
    mixed.append(rollout(f"#{'so ' * 11}{wrong_box}", correct=False))
    assert_rows(method.rewards(batch(mixed)), [[0, 0, 1, -2]])
    # Three of four without a thought, one of them without a box: 0 -> -2 d = -1.
    assert_rows(
        method.rewards(batch([rollout("#4"), wrong, wrong, rollout("a#4")])), [[-1, -1.5, -1.5, 0]]
    )
    stages = []
    for method.step in range(5):
        method.sampling("p", 4, 99)
        stages.append(method.metrics()["swap/autothink_stage"])
        if method.step == 2:  # the second stage takes both as they are
            assert_rows(method.rewards(batch(group)), [[1, 1, 0, 2]])
    assert stages == [1, 1, 2, 2, 3]
    # exp(-.05 z) of the right ones' lengths, z = -.8729, -.2182, 1.0911; the wrong one is alone.
    lengths, correct = (500, 1000, 1500, 2000), (True, True, False, True)
    thinks = [rollout(RIGHT, n, right) for n, right in zip(lengths, correct, strict=True)]
    assert_rows(method.rewards(batch(thinks)), [[1.0446, 1.0110, 0, 0.9469]], 1e-4)
    # Of two wrong ones, 10 and 20 tokens, z = -.7071 and .7071: the shorter one loses.
    pair = [rollout(RIGHT, n, False) for n in (20, 30)]
    assert_rows(
        method.rewards(batch(pair)),
        [[1 - math.exp(0.05 * 0.5**0.5), 1 - math.exp(-0.05 * 0.5**0.5)]],
        1e-6,
    )
    again = restored(method)
    assert torch.equal(again.rewards(batch(thinks)), method.rewards(batch(thinks)))


def test_lapo_learns_lengths_and_then_promises_them():
    method = objective("lapo", first_stage_steps=1)
    (plain,) = method.sampling("x", 4, 9000)
    assert plain.prompt == "x"
    # Right: 500, 1000, 2000; percentiles 800 and 1400. Only 1000 is inside, the others are over 100
    # tokens outside.
    assert_rows(method.rewards(batch(group(prompt="x"))), [[1, 1.7, 0, 1]])
    # 850: 50 outside of 900..1100 (of 700, 1000 and 1166.67): half of .7.
    lengths = (700, 1000, 1000, 1000, 1050)
    low, high = (torch.tensor(lengths, dtype=torch.float64).quantile(q).item() for q in (0.3, 0.7))
    assert (low, high) == (1000, 1000)  # no range, no length reward
    assert_rows(method.rewards(batch(group(lengths, (True,) * 5, prompt="y"))), [[1] * 5])

    method.step = 1
    again = restored(method)
    again.step = 1
    for either in (method, again):
        prompts = [either.sampling(problem, 2, 9000)[0].prompt for problem in ("x", "z")]
        assert prompts == [
            "x<think>\nI will answer the question with 1000 tokens.",
            "z<think>\nI will answer the question with 4096 tokens.",
        ]
        # exp(-120^2/(2 120^2)) = .6065. For z nothing is known: its own median, 500.
        known, unknown = (
            group((1000, 1120), (True, True), prompt=prompts[0]),
            group((500, 380), (True, False), prompt=prompts[1]),
        )
        assert_rows(
            either.rewards(batch(known, unknown)), [[1.8, 1 + 0.8 * math.exp(-0.5)], [1.8, 0]]
        )
        # x keeps 1000, for 1060 is longer; z has 500 now.
        assert [either.sampling(p, 2, 9000)[0].prompt.split()[-2] for p in ("x", "z")] == [
            "1000",
            "500",
        ]
    assert method.metrics() == {"swap/lapo_stage": 2.0, "swap/lapo_known_problems": 3.0}
    # A template that opens the thought itself.
    assert method.sampling("x<think>\n", 2, 9000)[0].prompt == prompts[0]


def test_lapo_forgets_a_length_at_a_visit_without_a_correct_answer():
    method = objective("lapo", first_stage_steps=2)
    method.rewards(batch(group(prompt="x")))
    method.rewards(batch(group((9, 9), (False, False), prompt="x")))
    method.step = 2
    assert "with 4096 tokens" in method.sampling("x", 2, 9000)[0].prompt
    # In the second stage a length stays.
    method.rewards(batch(group((70,), (True,), prompt="x")))
    method.rewards(batch(group((9,), (False,), prompt="x")))
    assert "with 70 tokens" in method.sampling("x", 2, 9000)[0].prompt


@pytest.mark.parametrize(
    ("name", "options", "limits"),
    [
        ("lapo", {"first_stage_steps": 1}, [40, 80, 80]),
        ("autothink", {"second_stage": 1, "third_stage": 2}, [40, 80, 120]),
        ("autothink", {"second_stage": 1, "third_stage": 2}, [40, 80, 80]),  # the last one holds on
    ],
)
def test_each_stage_has_a_limit(name, options, limits):
    given, found = ",".join(map(str, dict.fromkeys(limits))), []
    method = objective(name, limits=given, **options)
    for method.step in range(3):
        found.append(method.sampling("p", 4, 200)[0].max_new_tokens)
    assert found == limits
    message = (
        rf"--swap.{name}.limits has {limits[-1]}, but --rollout.max_new_tokens is {limits[-1] - 1}"
    )
    with pytest.raises(ConfigError, match=message):
        method.check(SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=limits[-1] - 1)))
    with pytest.raises(
        ConfigError, match=rf"--swap.{name}.limits is 'x'; use token limits such as 8192,16384"
    ):
        objective(name, limits="40,x")


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
    # Behind "2.", "so?", the newline, and "4." (for "but": "Waiting" has a capital that is not in
    # the list).
    assert cut_places(text, words, 0, 1) == [6, 16, 32, 41]
    assert cut_places(text, [*words, "Wait"], 0, 1) == [6, 16, 32, 41]  # in words, too
    assert cut_places(text, words, 14, 1) == [16, 32, 41]  # the first "so" is at 13
    # "wait" is 16 characters behind the first cut, "Hmm" 16 behind the second and 26 behind the
    # first, "but" 21.
    assert cut_places(text, words, 0, 16) == [6, 16, 32, 41]
    assert cut_places(text, words, 0, 17) == [6, 32, 41]
    assert cut_places(text, words, 0, 22) == [6, 32]
    assert cut_places("2 but 3 but 4", ["but"], 0, 1) == [2, 8]  # no sentence ends: at the word
    method = objective(
        "vsrm", words="wait,Hmm,so,but", first_characters=0, apart_characters=1, answers=3
    )
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
    # Steps end at 1, 3, 5; probabilities .25, .5, .5 there: .25 at the first end, nothing changes
    # at the second.
    logprobs = [-9.0, *torch.tensor([0.25, 0.5, 0.5]).log().tolist()]
    steps = replace(rollout("abcdef#\\boxed{42}"), step_ends=[1, 3, 5])
    scored = steps.with_signals(answer_logprobs=logprobs)
    method = objective("vsrm_scores")
    (term,) = method.token_advantages(batch([scored, rollout("abcdef#\\boxed{41}", correct=False)]))
    assert_rows(term[0], [0.25, 0.25] + [0] * 15, 1e-6)
    assert not term[1].any() and method.scores_steps
    # .5 to .509 is noise of the scores; in front of a change it takes a share of it.
    scores = torch.tensor([0.5, 0.509, 0.609]).log()
    noisy = scored.with_signals(answer_logprobs=[-9.0, *scores.tolist()])
    (term,) = method.token_advantages(batch([noisy]))
    assert_rows(term[0, :5], [0.17, 0.17, 0.1, 0.1, 0], 1e-6)


def test_jet_continues_and_cuts_behind_the_box():
    method = objective("jet", shares="50", phrase="\\nEnough{end}\\boxed{", answer_tokens=5)
    (request,) = method.sampling("p", 4, 100)
    assert (request.count, request.max_new_tokens) == (2, 100)
    whole = rollout("thought#\\boxed{42}.", kept=19.0)
    # 26 characters with the end of the thought written out, half of them: 7 of the thought, and 6
    # in the end of it.
    assert method.continuations(whole, READER) == [Continuation(8, "\nEnough</think>\\boxed{", 5)]


def test_jet_ends_every_response_with_the_end_token():
    method = objective("jet", shares="50", phrase="\\nEnough{end}\\boxed{")

    def ended(text, **more):
        return READER.text(method.edit(rollout(text, **more), READER).response_ids)

    # The phrase opens the box: a "." behind it, in the answer's own words, cuts nothing.
    begun = "thou\nEnough#\\boxed{"
    assert (
        ended(begun + "42}. And more.", kept=4.0) == "thou\nEnough</think>\\boxed{42}. And more.$"
    )
    assert (
        ended(begun + "42}. And more.$", kept=4.0) == "thou\nEnough</think>\\boxed{42}. And more.$"
    )
    # A second box: its sentence is the last one; without a full stop nothing is cut.
    second = begun + "41}? No: \\boxed{42} it is. And more.$"
    assert ended(second, kept=4.0) == "thou\nEnough</think>\\boxed{41}? No: \\boxed{42} it is.$"
    assert (
        ended(begun + "1} \\boxed{42} so\n", kept=4.0)
        == "thou\nEnough</think>\\boxed{1} \\boxed{42} so\n$"
    )
    # A box in what was kept is none of the answer's.
    assert (
        ended("\\boxed{1}\nEnough#\\boxed{42}. So", kept=9.0)
        == "\\boxed{1}\nEnough</think>\\boxed{42}. So$"
    )
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
    assert_rows(
        method.rewards(batch([rollout("#42", 50), rollout("#4", 50, False)])), [[0.95, 0]], 1e-6
    )
    assert_rows(method.rewards(batch([rollout(box, 50, False)] * 2)), [[0.1, 0.1]], 1e-6)
    assert method.reshapes_responses and method.normaliser == "group"


@pytest.mark.parametrize("shares", ["", "10,x", "0,50", "50,100"])
def test_jet_refuses_shares_that_are_none(shares):
    with pytest.raises(ConfigError, match=r"--swap\.jet\.shares is "):
        objective("jet", shares=shares)


def test_groups_of_jet_and_answers_of_s_grpo_must_fit():
    args = SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=8, max_new_tokens=512))
    with pytest.raises(
        ConfigError,
        match=r"n_samples_per_prompt is 8, but --swap\.jet\.shares makes 6 of a response",
    ):
        objective("jet").check(args)
    objective("jet", shares="25,50,75").check(args)
    with pytest.raises(ConfigError, match=r"--swap\.s_grpo\.answer_tokens is 512, not less than"):
        objective("s_grpo").check(args)
    objective("s_grpo", answer_tokens=511).check(args)


def test_s_grpo():
    # The published order: wrong, right, right, and the whole one right: 0, 1, .5, .25; it stands
    # first in the group.
    group = [
        rollout("x", correct=right, kept=kept) for right, kept in ((1, 9), (0, 2), (1, 5), (1, 7))
    ]
    values = objective("s_grpo").rewards(batch(group))
    assert_rows(values, [[0.25, 0, 1, 0.5]])
    assert_rows(values - values.mean(), [[-0.1875, -0.4375, 0.5625, 0.0625]])
    assert_rows(
        objective("s_grpo").rewards(batch([rollout("x", correct=False, kept=1)] * 2)), [[0, 0]]
    )


def test_s_grpo_leaves_the_thought_at_places_of_its_own():
    method = objective("s_grpo", answer_tokens=7, phrase="Stop\\n{end}")
    (request,) = method.sampling("p", 6, 100)
    assert request.count == 1
    whole = rollout("a thought#\\boxed{42}")
    asked = method.continuations(whole, READER)
    assert asked == method.continuations(whole, READER)  # the same when a step is done again
    places = [one.kept for one in asked]
    assert (
        len(places) == 5
        and places == sorted(places)
        and places[0] >= 0
        and places[-1] < len("a thought")
    )
    assert {one.suffix for one in asked} == {"Stop\n</think>"}
    assert method.continuations(rollout("b thought#\\boxed{42}"), READER) != asked
