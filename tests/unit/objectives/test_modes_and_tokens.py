"""Modes of thinking, and rewards by token: against numbers of the code that was released, or worked out by hand."""

import json
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from support.objectives import RIGHT, assert_rows, batch, objective, rollout

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.group_rewards import is_degenerate


def test_decs():
    # L_max 10. 6 tokens, 3 and 4 redundant: 1 + .1 (1 - 6/10) = 1.04 there, else 1.1; 3 tokens: 1.1 everywhere.
    # Mean 1.07, sd .0424 at these tokens: -.7071 and .7071, 0 elsewhere.
    method = objective("decs", max_length=10)
    long = rollout(" 4\nxy#", answer="4")  # the thought's first sentence ends behind 3 tokens
    short = rollout("4.#", answer="4")
    (term,) = method.token_advantages(batch([long, short]))
    assert_rows(term, [[0, 0, 0, -0.7071, -0.7071, 0], [0, 0, 0, 0.7071, 0.7071, 0]], 1e-4)
    # A wrong one earns nothing anywhere: (1.1, 1.1, 0): mean .7333, sd .6351.
    wrong = rollout(" 4\nxy#", correct=False, answer="4")
    (term,) = method.token_advantages(batch([short, short, wrong]))
    assert_rows(term[:, 0], [0.57735, 0.57735, -1.1547], 1e-4)
    assert term[:, 0].equal(term[:, 5]) and method.outcome_weight == 0
    # At a redundant token 1.04, 1.1 and 0: mean .71333, sd .61849.
    (term,) = method.token_advantages(batch([long, short, wrong]))
    assert_rows(term[:, 3], [0.52817, 0.62518, -1.15334], 1e-4)
    # Nothing names the answer: nothing is redundant.
    (term,) = method.token_advantages(batch([rollout(" 5\nxy#", answer="4"), short]))
    assert not term.any()


def measured(accuracy, **options):
    """AALC after its measurement."""
    method = objective("aalc", **options)
    assert method.monitor() == (500, 1)
    method.observe_monitor(batch([rollout("x", correct=number < 50 * accuracy) for number in range(50)]))
    assert method.monitor() is None
    return method


@pytest.mark.parametrize(("accuracy", "weight", "shortness"), [(0.6, 0.94, 1), (0.98, 0.902, 0.9247), (1, 0.9, 0.5)])
def test_aalc(accuracy, weight, shortness):
    # L = 512 of 1024: 1 - min(a^128, .5); the answer weighs 1 - .1 a.
    method = measured(accuracy)
    rewards = [weight + 1e-6 * shortness, 1e-6 * shortness]
    mean, deviation = sum(rewards) / 2, statistics.stdev(rewards)
    advantages = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
    assert_rows(method.rewards(batch([rollout("x", 512), rollout("x", 512, False)])), [advantages], 1e-5)
    assert method.normaliser == "none"


def test_aalc_counts_the_length_where_all_are_right():
    # a = 1; L/1024 = .25, .75: 1e-6 times .75, .25: sd 3.536e-7, so A = 2.5e-7/(3.536e-7 + 1e-6) = .1847.
    groups = [rollout("x", 256), rollout("x", 768)]
    assert_rows(measured(1).rewards(batch(groups)), [[0.1847, -0.1847]], 1e-4)
    assert not measured(0.6).rewards(batch(groups)).any()  # .6^128 is next to nothing
    # Half of the target: as far as an accuracy of .5. State goes with a checkpoint.
    method = measured(0.5, target=0.5)
    restored = objective("aalc", target=0.5)
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    assert torch.equal(restored.rewards(batch(groups)), measured(1).rewards(batch(groups)))
    assert restored.monitor() is None
    restored.step = 10
    assert restored.monitor() == (500, 1)


def test_thinkless():
    # Mark, answer and length: short right 1, thought right .5, wrong -1, no mark -1; mean -.125.
    method = objective("thinkless", short="s", think="t")
    group = [rollout("sab"), rollout("tab#d"), rollout("sa", correct=False), rollout("ab")]
    assert_rows(method.rewards(batch(group)), [[1, 0.5, -1, -1]])
    # A thought that never closes is wrong.
    assert_rows(method.rewards(batch([rollout("tabcd"), rollout("sab")])), [[-1, 1]])
    # Lengths 3 and 5: B = 2, T = 8. The first token weighs .001 8/2 = .004, the others 8/6.
    (term,) = method.token_advantages(batch([rollout("sab"), rollout("tab#d")]))
    assert_rows(term, [[0.25 * w for w in [0.004] + [4 / 3] * 4], [-0.25 * w for w in [0.004] + [4 / 3] * 4]])
    # The mean over all tokens: .001 times the mean of first tokens, and the mean of the others.
    used = torch.cat([term[0, :3], term[1]])
    assert used.mean().item() == pytest.approx(0.001 * 0 + (2 * 0.25 - 4 * 0.25) / 6)
    with pytest.raises(DataError, match=r"--swap\.thinkless\.think is '<think>', with which the chat template ends"):
        objective("thinkless").check_prompts(["<u>1<a><think>\n"])
    objective("thinkless").check_prompts(["<u>1<a>"])


def test_autothink():
    method = objective("autothink", second_stage=2, third_stage=4)
    (request,) = method.sampling("<u>1?<a><think>\n", 4, 99)
    assert (request.prompt, request.count) == ("<u>1?<a><think>\n...\n", 4)
    assert method.eval_prompt("<u>1?<a>") == "<u>1?<a><think>\n...\n"
    # Three of four think: q = .75, d = .5. Thought right 1 - .5, wrong 0 - .5; without: q = .25, d = 0: 2.
    box, wrong_box = "\\boxed{4}", "\\boxed{5}"
    group = [
        rollout(f"ab#{box}"),
        rollout(f"abc#{box}"),
        rollout(f"ab#{wrong_box}", correct=False),
        rollout(f"#{box}"),
    ]
    assert_rows(method.rewards(batch(group)), [[0.5, 0.5, -0.5, 2]])
    wrong = rollout(f"#{wrong_box}", correct=False)
    assert_rows(method.rewards(batch([rollout(f"#{box}"), wrong, wrong, rollout(f"a#{box}")])), [[1.5, -1.5, -1.5, 1]])
    # Half thinks: no share is over 1/2. Without a box, or with an open thought, 0 and wrong; repeating itself -2.
    mixed = [rollout("#4"), rollout(f"a{box}"), rollout(f"a#{box}")]
    mixed.append(rollout(f"#{'so ' * 11}{wrong_box}", correct=False))
    assert_rows(method.rewards(batch(mixed)), [[0, 0, 1, -2]])
    # Three of four without a thought, one of them without a box: 0 -> -2 d = -1.
    assert_rows(method.rewards(batch([rollout("#4"), wrong, wrong, rollout("a#4")])), [[-1, -1.5, -1.5, 0]])
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
    assert_rows(method.rewards(batch(pair)), [[1 - math.exp(0.05 * 0.5**0.5), 1 - math.exp(-0.05 * 0.5**0.5)]], 1e-6)
    restored = objective("autothink")
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    assert torch.equal(restored.rewards(batch(thinks)), method.rewards(batch(thinks)))


def test_autothink_has_a_limit_for_each_stage():
    method = objective("autothink", second_stage=1, third_stage=2, limits="40,80,120")
    found = []
    for method.step in range(3):
        found.append(method.sampling("p", 4, 200)[0].max_new_tokens)
    assert found == [40, 80, 120]
    with pytest.raises(ConfigError, match=r"--swap.autothink.limits has 120, but --rollout.max_new_tokens is 100"):
        method.check(SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=100)))
    with pytest.raises(ConfigError, match=r"--swap.autothink.limits is 'x'; use token limits such as 8192,16384"):
        objective("autothink", limits="40,x")
    two = objective("autothink", second_stage=1, third_stage=2, limits="40,80")
    two.step = 2
    assert two.sampling("p", 4, 200)[0].max_new_tokens == 80  # the last one holds on


@pytest.mark.parametrize(
    ("text", "degenerate"),
    [
        ("so " * 10, True),
        ("so " * 9, False),
        ("a " + "so " * 10, True),
        ("we try again " * 10, True),
        ("x " + "we try again " * 11, True),  # ten times "again we try"
        ("x " + "we try again " * 10, False),
        ("one " * 9 + "two " * 9, False),
        ("x" * 120, True),
        ("x" * 119 + " " + "x" * 119, False),
        (" ".join(str(n) for n in range(400)), False),
        ((" ".join(f"w{n}" for n in range(31)) + " ") * 10, False),  # phrases of 30 words at most
        ("", False),
    ],
)
def test_degenerate_texts(text, degenerate):
    assert is_degenerate(text) == degenerate
