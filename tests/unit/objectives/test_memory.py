"""Objectives that remember earlier batches, against numbers worked out by hand; the group is that of group_rewards."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from support.objectives import RIGHT, UNBOXED, assert_rows, batch, objective, rollout

from openrlhf_swap.errors import ConfigError

LENGTHS, CORRECT = (500, 1000, 1500, 2000), (True, True, False, True)


def group(lengths=LENGTHS, correct=CORRECT, text=RIGHT, **more):
    return [rollout(text, length, right, **more) for length, right in zip(lengths, correct, strict=True)]


def rewards(name, *groups, **options):
    return objective(name, **options).rewards(batch(*(groups or [group()])))


def test_hapo_remembers_each_problem():
    method = objective("hapo")
    first = group((1000, 1700), (True, True), prompt="x")
    assert_rows(method.rewards(batch(first)), [[1, 1]])  # nothing is known yet
    restored = objective("hapo")
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    # h = 1000: cos(pi/2 L/h) = .7071, 0, -.7071, -1 (kept at -.7 for a right one); a short wrong one earns nothing.
    second = [*group(prompt="x"), rollout(RIGHT, 500, False, prompt="x")]
    for either in (method, restored):
        assert_rows(either.rewards(batch(second)), [[1.7071, 1, -0.7071, 0.3, 0]], 1e-4)
        assert either.metrics() == {"swap/hapo_known_problems": 1}
    # h = 500 now; another problem knows nothing, and a wrong answer teaches nothing.
    third = group((500,), (True,), prompt="x"), group((500,), (False,), prompt="y")
    assert_rows(method.rewards(batch(*third)), [[1], [0]], 1e-9)
    assert method.metrics() == {"swap/hapo_known_problems": 1}
    by_mean = objective("hapo", memory="mean", weight=0.5)
    by_mean.rewards(batch(first))
    # h = 1350: cos(pi/2 675/1350) = .7071, half of it.
    assert_rows(by_mean.rewards(batch(group((675,), (True,), prompt="x"))), [[1 + 0.5**1.5]], 1e-9)
    # h = (1000 + 1700 + 675)/3 = 1125: every correct response counts once, a wrong one does not.
    assert_rows(by_mean.rewards(batch(group((1125, 1), (True, False), prompt="x"))), [[1, 0]], 1e-9)
    restored = objective("hapo", memory="mean", weight=0.5)
    restored.resume(0, json.loads(json.dumps(by_mean.state_dict())))
    for either in (by_mean, restored):  # (3375 + 1125)/4 = 1125 again, then (4500 + 3500)/5 = 1600
        assert_rows(either.rewards(batch(group((3500,), (True,), prompt="x"))), [[1 - 0.35]], 1e-9)
        assert_rows(either.rewards(batch(group((1600,), (False,), prompt="x"))), [[0]], 1e-9)
        assert either.state_dict()["lengths"].popitem()[1] == 1600


def test_a_dlp_moves_its_price_after_use():
    method = objective("a_dlp")
    # A thought that never closes is wrong.
    assert_rows(objective("a_dlp").rewards(batch([rollout("\\boxed{42}", 100), rollout(RIGHT, 100)])), [[-0.1, 0.9]])
    assert_rows(method.rewards(batch(group())), [[0.5, 0, -1.5, -1]])
    assert method.metrics()["swap/a_dlp_price"] == pytest.approx(0.00113)  # .001 + .001 (.75 - .62)
    restored = objective("a_dlp")
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    for either in (method, restored):
        assert_rows(either.rewards(batch(group((100,), (False,)))), [[-0.113]])
        assert either.metrics()["swap/a_dlp_price"] == pytest.approx(0.00051)
    free = objective("a_dlp", rate=1)
    free.rewards(batch(group((100,), (False,))))
    assert free.metrics()["swap/a_dlp_price"] == 0


def test_lapo_learns_lengths_and_then_promises_them():
    method = objective("lapo", first_stage_steps=1)
    (plain,) = method.sampling("x", 4, 9000)
    assert plain.prompt == "x"
    # Right: 500, 1000, 2000; percentiles 800 and 1400. Only 1000 is inside, the others are over 100 tokens outside.
    assert_rows(method.rewards(batch(group(prompt="x"))), [[1, 1.7, 0, 1]])
    # 850: 50 outside of 900..1100 (of 700, 1000 and 1166.67): half of .7.
    lengths = (700, 1000, 1000, 1000, 1050)
    low, high = (torch.tensor(lengths, dtype=torch.float64).quantile(q).item() for q in (0.3, 0.7))
    assert (low, high) == (1000, 1000)  # no range, no length reward
    assert_rows(method.rewards(batch(group(lengths, (True,) * 5, prompt="y"))), [[1] * 5])

    method.step = 1
    restored = objective("lapo", first_stage_steps=1)
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    restored.step = 1
    for either in (method, restored):
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
        assert_rows(either.rewards(batch(known, unknown)), [[1.8, 1 + 0.8 * math.exp(-0.5)], [1.8, 0]])
        # x keeps 1000, for 1060 is longer; z has 500 now.
        assert [either.sampling(p, 2, 9000)[0].prompt.split()[-2] for p in ("x", "z")] == ["1000", "500"]
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


def test_lapo_has_a_limit_for_each_stage():
    method = objective("lapo", first_stage_steps=1, limits="4096,2048")
    assert method.sampling("x", 2, 9000)[0].max_new_tokens == 4096
    method.step = 1
    assert method.sampling("x", 2, 9000)[0].max_new_tokens == 2048
    with pytest.raises(ConfigError, match=r"--swap.lapo.limits has 4096, but --rollout.max_new_tokens is 4000"):
        method.check(SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=4000)))


def test_short_rl():
    # Of the right ones, (L - 500)/1500: .5 for the shortest, .5 - 1/3, -, .5 - 1; answer and format: 3, wrong -.5.
    method = objective("short_rl")
    assert_rows(method.rewards(batch(group())), [[3.5, 3 + 1 / 6, -0.5, 2.5]], 1e-6)
    # 700 is within the tolerance of 200, 701 is not: .5 - 201/1500. Unformatted: -2 - 1.
    near = [*group((500, 700, 701, 2000), (True,) * 4), rollout(UNBOXED, 400, True)]
    assert_rows(method.rewards(batch(near)), [[3.5, 3.5, 3.5 - 201 / 1500, 2.5, -3]], 1e-6)
    # The best accuracy is .8 now; .75 is not more than .05 below it, .5 is.
    assert_rows(method.rewards(batch(group())), [[3.5, 3 + 1 / 6, -0.5, 2.5]], 1e-6)
    restored = objective("short_rl")
    restored.resume(0, json.loads(json.dumps(method.state_dict())))
    half = batch(group((500, 900), (True, False)))
    for either in (method, restored):
        assert_rows(either.rewards(half), [[3, -0.5]])
        assert either.metrics() == {"swap/short_rl_best_accuracy": 0.8}
    assert_rows(objective("short_rl").rewards(half), [[3.5, -0.5]])
