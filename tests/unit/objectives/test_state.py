"""Objectives that remember batches, measure the policy or go through stages, by hand."""

import math
import statistics
from types import SimpleNamespace

import pytest
from support.objectives import (
    RIGHT,
    UNBOXED,
    assert_rows,
    batch,
    group,
    objective,
    restored,
    rollout,
)

from openrlhf_swap.errors import ConfigError


def rewards_of(method, *groups):
    return method.rewards(batch(*groups))


def test_hapo_remembers_each_problem():
    method = objective("hapo")
    first = group((1000, 1700), (True, True), prompt="x")
    assert_rows(rewards_of(method, first), [[1, 1]])  # nothing is known yet
    # h = 1000: cos(pi/2 L/h) = .7071, 0, -.7071, -1 (kept at -.7 for a right one); a short wrong
    # one earns nothing.
    second = [*group(prompt="x"), rollout(RIGHT, 500, False, prompt="x")]
    for either in (restored(method), method):
        assert_rows(rewards_of(either, second), [[1.7071, 1, -0.7071, 0.3, 0]], 1e-4)
        assert either.metrics() == {"swap/hapo_known_problems": 1}
    # h = 500 now; another problem knows nothing, and a wrong answer teaches nothing.
    known = group((500,), (True,), prompt="x")
    unknown = group((500,), (False,), prompt="y")
    assert_rows(rewards_of(method, known, unknown), [[1], [0]])
    assert method.metrics() == {"swap/hapo_known_problems": 1}


def test_acoer_pays_for_shortness_while_accuracy_holds():
    method = objective("acoer", warmup_steps=1, window=1, budget=1000)
    right = [rollout(RIGHT, length) for length in (511, 1011, 2011)]  # thoughts of 500, 1000, 2000
    wrong = rollout(RIGHT, 511, correct=False)
    unclosed = rollout("\\boxed{42}")  # its thought counts as none, and the format is missing
    # f = log 3.5/log 6, 0, 0, -, 1
    shaped = [2 + 0.02 * math.log(3.5) / math.log(6), 2, 2, 1, 1.02]
    spread = statistics.stdev(shaped) + 1e-4
    expected = [(value - statistics.fmean(shaped)) / spread for value in shaped]
    group = [*right, wrong, unclosed]
    assert_rows(rewards_of(method, group), [expected])
    assert method.metrics() == {"swap/acoer_alpha": 0.02, "swap/acoer_budget": 1000}
    again = restored(method)
    rewards_of(again, group)
    # Of thoughts of 875 tokens in the mean.
    expected = {"swap/acoer_alpha": 0.0204, "swap/acoer_budget": 0.85 * 875}
    assert again.metrics() == pytest.approx(expected)


def test_acoer_gives_way_when_accuracy_falls():
    method = objective("acoer", warmup_steps=0, window=2)
    for is_correct in (True, False):  # the average falls by 2/51
        rewards_of(method, [rollout(RIGHT, 300, is_correct)] * 2)
    # It starts to change with the second batch; an average of 289 - 289 2/51 tokens is too little.
    expected = {"swap/acoer_alpha": 0.019, "swap/acoer_budget": 512}
    assert method.metrics() == pytest.approx(expected)


def test_a_dlp_moves_its_penalty_after_use():
    method = objective("a_dlp")
    assert_rows(rewards_of(method, group()), [[0.5, 0, -1.5, -1]])
    adjusted = 0.001 + 0.001 * (0.75 - 0.62)
    assert method.metrics()["swap/a_dlp_penalty"] == pytest.approx(adjusted)
    for either in (restored(method), method):
        assert_rows(rewards_of(either, group((100,), (False,))), [[-0.113]])
        assert either.metrics()["swap/a_dlp_penalty"] == pytest.approx(0.00051)
    free = objective("a_dlp", rate=1)
    rewards_of(free, group((100,), (False,)))
    assert free.metrics()["swap/a_dlp_penalty"] == 0
    # A thought that never closes is wrong.
    pair = [rollout("\\boxed{42}", 100), rollout(RIGHT, 100)]
    assert_rows(rewards_of(objective("a_dlp"), pair), [[-0.1, 0.9]])


def monitored(name="laser_d"):
    """A LASER-D that has seen one easy, one medium and no hard problem, ten responses each."""
    method = objective(name, shortest=20, longest=100, grid=10, monitor_every=3)
    assert method.monitor() == (500, 8)
    # Easy (9 of 10 right): two of ten responses within 30. int(0.2 * 5) = 1: 30 is the shortest
    # that suffices (within 20: none).
    easy = group([30] * 2 + [80] * 8, [True] * 9 + [False], "")
    # Medium (5 of 10 right): int(share * 2) >= 1 needs half of all responses, right or wrong: five
    # within 47, so 50.
    medium = group([47] * 5 + [90] * 5, [False] * 5 + [True] * 5, "")
    method.observe_monitor(batch(easy, medium))
    return method


def test_laser_d_chooses_targets_by_difficulty():
    method = monitored()
    targets = {"swap/laser_d_target_high": 30.0, "swap/laser_d_target_medium": 50.0}
    assert method.metrics() == restored(method).metrics() == targets
    # Three of three right: easy, target 30. One of three: medium, target 50. None: hard; no target
    # is known, so the longest response of the batch (200) stands in, which changes nothing without
    # a right answer.
    medium = [rollout(RIGHT, 50), rollout(RIGHT, 20, correct=False), rollout(UNBOXED, 20)]
    easy = group((30, 31, 200), (1, 1, 1))
    hard = group((20, 20, 20), (0, 0, 0))
    expected = [[1.5, 1, 1], [1.5, -0.5, -1], [-0.5, -0.5, -0.5]]
    assert_rows(rewards_of(method, easy, medium, hard), expected)


def test_laser_d_monitors_every_third_step():
    again = restored(monitored())
    assert again.monitor() is None  # not twice before the same step
    again.step = 2
    assert again.monitor() is None
    again.step = 3
    assert again.monitor() == (500, 8)


def asked(method, problem):
    (request,) = method.sampling(problem, 2, 9000)
    return request.prompt


def promised(method, problem):
    """The number of tokens that the prompt of the second stage promises."""
    return int(asked(method, problem).split()[-2])


def test_lapo_learns_lengths_and_then_promises_them():
    method = objective("lapo", first_stage_steps=1)
    assert asked(method, "x") == "x"
    # Right: 500, 1000, 2000; percentiles 800 and 1400. Only 1000 is inside, the others are over 100
    # tokens outside.
    assert_rows(rewards_of(method, group(prompt="x")), [[1, 1.7, 0, 1]])
    # Both percentiles are 1000: no range, no length reward.
    alike = group((700, 1000, 1000, 1000, 1050), (True,) * 5, prompt="y")
    assert_rows(rewards_of(method, alike), [[1] * 5])
    for either in (restored(method), method):
        either.step = 1
        assert asked(either, "x") == "x<think>\nI will answer the question with 1000 tokens."
        assert promised(either, "z") == 4096
        # exp(-120^2/(2 120^2)) = .6065. For z nothing is known: its own median, 500.
        known = group((1000, 1120), (True, True), prompt=asked(either, "x"))
        unknown = group((500, 380), (True, False), prompt=asked(either, "z"))
        expected = [[1.8, 1 + 0.8 * math.exp(-0.5)], [1.8, 0]]
        assert_rows(rewards_of(either, known, unknown), expected)
        # x keeps 1000, for 1060 is longer; z has 500 now. A template may open the thought itself.
        assert promised(either, "x<think>\n") == 1000
        assert promised(either, "z") == 500
    assert method.metrics() == {"swap/lapo_stage": 2.0, "swap/lapo_known_problems": 3.0}


def test_lapo_forgets_a_length_at_a_visit_without_a_correct_answer():
    method = objective("lapo", first_stage_steps=2)
    rewards_of(method, group(prompt="x"))
    rewards_of(method, group((9, 9), (False, False), prompt="x"))
    method.step = 2
    assert promised(method, "x") == 4096
    # In the second stage a length stays.
    rewards_of(method, group((70,), (True,), prompt="x"))
    rewards_of(method, group((9,), (False,), prompt="x"))
    assert promised(method, "x") == 70


def test_autothinks_stages_follow_the_steps():
    method = objective("autothink", second_stage=2, third_stage=4)
    (request,) = method.sampling("<u>1?<a><think>\n", 4, 99)
    assert request.prompt == "<u>1?<a><think>\n...\n"
    assert request.count == 4
    assert method.eval_prompt("<u>1?<a>") == "<u>1?<a><think>\n...\n"
    for step, stage in enumerate((1, 1, 2, 2, 3)):
        method.step = step
        method.sampling("p", 4, 99)
        assert method.metrics()["swap/autothink_stage"] == stage
    # exp(-.05 z) of the right ones' lengths, z = -.8729, -.2182, 1.0911; the wrong one is alone.
    expected = [[1.0446, 1.0110, 0, 0.9469]]
    assert_rows(rewards_of(restored(method), group()), expected, 1e-4)


@pytest.mark.parametrize(
    ("name", "options", "limits"),
    [
        ("lapo", {"first_stage_steps": 1}, [40, 80, 80]),
        ("autothink", {"second_stage": 1, "third_stage": 2}, [40, 80, 80]),  # the last one holds on
        ("thinkprune", {"stage_steps": 1}, [40, 30, 20]),
    ],
)
def test_each_stage_has_a_limit(name, options, limits):
    given = ",".join(map(str, dict.fromkeys(limits)))
    method = objective(name, limits=given, **options)
    for step, limit in enumerate(limits):
        method.step = step
        (request,) = method.sampling("p", 4, 200)
        assert request.max_new_tokens == limit
    args = SimpleNamespace(rollout=SimpleNamespace(max_new_tokens=max(limits) - 1))
    with pytest.raises(ConfigError, match=rf"--swap.{name}.limits has {max(limits)}, but --roll"):
        method.check(args)
    with pytest.raises(ConfigError, match=rf"--swap.{name}.limits is 'x'; use "):
        objective(name, limits="40,x")
