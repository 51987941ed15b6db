"""Objectives that change what a response earns, against numbers worked out by hand.

Most of them on one group: 500, 1000, 1500 and 2000 tokens, all right but the third. So p = .75, and
the right lengths have a mean of 1166.667, a deviation of 763.763, and one of 623.610 as a
population.
"""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from support.objectives import (
    CORRECT,
    LENGTHS,
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

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.formats import REFLECTION, is_degenerate
from openrlhf_swap.objectives.smartthinker import best_lengths


def centred(values):
    return values - values.mean(-1, keepdim=True)


def case(name, expected, *groups, within=1e-9, **options):
    """The rewards of some groups, by default the one above."""
    return pytest.param(name, expected, groups, within, options, id=name)


def steps(text, correct=True):
    return rollout(text + "\\boxed{42}", correct=correct)


WAITS = [steps("so#"), steps("Wait, Wait#"), steps("Wait#", False), steps("Wait: await, Waiting#")]
CHANGE, QUARTER = 0.45 * math.tanh(0.5), 0.25 * (1 + 0.5**0.5)
NOTHING, ALIKE = group(correct=(False,) * 4), group((1250,) * 4, (True,) * 4)
UNFORMATTED = [
    rollout(UNBOXED, 50),
    rollout("cut off", 50, False),
    rollout("two#thoughts" + RIGHT, 50),
]


@pytest.mark.parametrize(
    ("name", "expected", "groups", "within", "options"),
    [
        # The shortest right one has 500: 2, 2 - .5, 0 - 1, 2 - 1.5. None is right: the mean, 200.
        case("shorterbetter", [[2, 1.5, -1, 0.5]]),
        case("shorterbetter", [[-0.1, -0.1]], group((100, 300), (False, False))),
        # (L - 500)/1500 = 0, 1/3, 2/3, 1. A short wrong one earns nothing for it; equal lengths: no
        # length reward.
        case("kimi", [[1.5, 1 + 1 / 6, -1 / 6, 0.5]]),
        case("kimi", [[1.2, 1 + 0.4 / 6, -0.4 / 6, 0.8]], weight=0.4),
        case(
            "kimi",
            [[0, 0.5], [0, 1]],
            group((21, 23), (False, True)),
            group((27, 27), (False, True)),
        ),
        # Half of the way: the middle. At 0 tokens the short numbers, at the limit and beyond it the
        # long ones. A quarter: long + (short - long)/2 (1 + cos 45 degrees).
        case(
            "cosine",
            [[0.75, -0.75, 0.5, -0.5]],
            group((50, 50, 100, 200), (1, 0, 1, 0), ""),
            max_length=100,
        ),
        case(
            "cosine", [[0.5 + QUARTER, -0.5 - QUARTER]], group((25, 25), (1, 0), ""), max_length=100
        ),
        # The three shortest: 1, 1, 0; mean 2/3, sd .57735. Half of four by default: 500 and 1000,
        # both right.
        case("gfpo", [[0.5773, 0.5773, -1.1545, 0]], within=1e-4, share=0.75),
        case("gfpo", [[0, 0, 0, 0]]),
        # c: .5, .5, -1.5, .5; [L <= 1200]: .866, .866, -.866, -.866; the sum, whitened over 5000
        # tokens.
        case("gdpo", [[1.2525, 1.2525, -1.3266, 0.0556]], within=1e-4, target_length=1200),
        case("gdpo", [[0, 0]], group((5, 7), (True, True))),
        case("dr_grpo", [[1, 1, 0, 1]]),
        # p w = .1875, times .25, .5, .75, 1.
        case("prime_linear", [[0.953125, 0.90625, -0.140625, 0.8125]]),
        # p = .75, the longest correct has 2000: .2 x .75 L/2000 = .15 (.25, .5, -, 1). The wrong
        # answer's 40 tokens do not count as the longest: 1 - .2 x .5. A reward is used up, never
        # turned: 1 - 1.5.
        case("pass_rate_penalty", [[0.9625, 0.925, 0, 0.85]]),
        case("pass_rate_penalty", [[0.9, 0]], group((20, 40), (True, False))),
        case("pass_rate_penalty", [[0, 0.25]], group((40, 20), (True, True)), weight=1.5),
        case("pass_rate_penalty", [[0, 0]], group((40, 20), (False, False))),
        # Mean length 1250: 1/(1 + .33 L/1250).
        case("gr3", [[1 / 1.132, 1 / 1.264, 0, 1 / 1.528]]),
        case("gr3", [[1, 1, 0, 1]], alpha=0),
        # 3500 of 5000 tokens are correct ones': each weighs 5000/3500, so that the sum over all
        # tokens is their number. Nor does it matter what was cut off: 150 of 200 tokens are correct
        # ones'.
        case("on_policy_sft", [[10 / 7, 10 / 7, 0, 10 / 7]]),
        case(
            "on_policy_sft",
            [[4 / 3, 4 / 3, 0]],
            [rollout(RIGHT, 100, truncated=True), *group((50, 50), (1, 0))],
        ),
        case("on_policy_sft", [[0, 0]], group((5, 7), (False, False))),
        # mean L/L - 1 = 1.5, .25, -.1667, -.375; + 5 (c - p): 2.75, 1.5, -3.917 -> -2, .875;
        # z-score as a population.
        case("o1_pruner", [[1.1302, 0.4126, -1.5967, 0.0538]], within=1e-4),
        case("o1_pruner", [[0, 0]], group((5, 5), (True, True))),
        # k = 1, 3, 2, 2; mu of the correct ones 2: .9 (1 - .5 tanh(+-.5)) + .1; wrong: the box
        # alone. Without a correct one, with and without a box: mu is not needed.
        case("step_grpo", [[1 + CHANGE, 1 - CHANGE, 0.1, 1]], WAITS),
        case("step_grpo", [[0.1, 0]], [steps("a#", False), rollout("a#4", correct=False)]),
        # c - p = .25, .25, -.75, .25; mean over 5000 tokens -.05, sd .4583. Whitened over the
        # batch: a group that is all right gets minus the mean, with 5000 tokens more of 0: m =
        # -.025 and v = (3500 * .275^2 + 1500 * .725^2 + 5000 * .025^2)/10000 = .105625, whose root
        # is .325.
        case("dler", [[0.6546, 0.6546, -1.5274, 0.6546]], within=1e-4),
        case(
            "dler", [[0.8461, 0.8461, -2.2307, 0.8461], [0.0769] * 4], group(), ALIKE, within=1e-4
        ),
        # Cut off is wrong, whatever the grader says: nothing has spread then. So is a box in a
        # thought that never closes: 0 and 1, L = 50 each: -.5 and .5; v = 100 * .25/99, and
        # .5/sqrt(25/99) = .9949874.
        case(
            "dler", [[0, 0]], [rollout(RIGHT, 50, False), rollout(RIGHT, 50, True, truncated=True)]
        ),
        case(
            "dler",
            [[-0.9949874, 0.9949874]],
            [rollout("\\boxed{42}", 50), rollout(RIGHT, 50)],
            within=1e-6,
        ),
        # L_T = 50, bonus .5: right and short 1.5; right and long 1; wrong -.5; unformatted -1,
        # right or not.
        case("laser", [[1.5, 1, -0.5]], group((50, 51, 50), (True, True, False)), target_length=50),
        case("laser", [[-1, -1, -1]], UNFORMATTED, target_length=50),
    ],
)
def test_rewards(name, expected, groups, within, options):
    assert_rows(rewards(name, *groups, **options), expected, within)


def test_a_setting_out_of_range_and_normalisers():
    with pytest.raises(ConfigError, match=r"--swap.gfpo.share is '2', which should be"):
        objective("gfpo", share=2)
    assert [objective(name).normaliser for name in ("dr_grpo", "on_policy_sft")] == [
        "centre",
        "none",
    ]


def test_arora():
    # z = (L - 1166.667)/623.610; sigmoid .2556, .4336, .7919; R = .97444, .95664, 0, .92081; RLOO:
    # 4/3 (R - mean).
    values = rewards("arora")
    z = [(length - 3500 / 3) / statistics.pstdev([500, 1000, 2000]) for length in LENGTHS]
    by_hand = [
        right * (1 - 0.1 / (1 + math.exp(-place))) for right, place in zip(CORRECT, z, strict=True)
    ]
    assert [round(value, 4) for value in by_hand] == [0.9744, 0.9566, 0, 0.9208]
    assert_rows(values, [[4 / 3 * value for value in by_hand]], 1e-6)
    assert_rows(centred(values), [[0.3486, 0.3249, -0.9506, 0.2771]], 1e-4)
    # Cut off: wrong, and out of the statistics. One right one: z = 0. None: 0.
    cut = [*group((10,), (True,)), rollout(RIGHT, 90, True, truncated=True)]
    assert_rows(
        rewards("arora", cut, group((5, 9), (False, False)), alpha=0.2),
        [[2 * 0.9, 0], [0, 0]],
        1e-6,
    )


def test_grpo_lead():
    # z of the right ones = (L - mean)/763.763 = -.8729, -.2182, 1.0911; exp(-.05 z); weights w(.75)
    # = .95 of what is above the mean, w(.25) = 1.4926 of what is below.
    longer = group([4000 + length for length in LENGTHS])
    assert_rows(rewards("grpo_lead", longer), [[0.5162, 0.4842, -2.2371, 0.4234]], 1e-4)
    # The three shortest have 1000 tokens on average: lengths do not count. R = 1, 1, -1, 1: sd 1, A
    # = .5 and -1.5.
    assert_rows(rewards("grpo_lead"), [[0.475, 0.475, -1.5 * 1.492636, 0.475]], 1e-5)
    # Without the format 0, between right and wrong: R = 1, 0: mean .5, sd .7071.
    pair = [rollout(RIGHT, 50), rollout(UNBOXED, 50)]
    weight = 0.4 + 1.1 / (1 + math.exp(-2.5))
    assert_rows(rewards("grpo_lead", pair), [[weight * 0.5**0.5, -weight * 0.5**0.5]], 1e-5)
    # Unformatted and repeating itself -2: R = 1, -2: mean -.5, sd 2.1213.
    repeats = [rollout(RIGHT, 50), rollout("so " * 10, correct=False)]
    assert_rows(rewards("grpo_lead", repeats), [[weight * 0.5**0.5, -weight * 0.5**0.5]], 1e-5)
    three = [rollout(RIGHT, 50), rollout("so " * 10, correct=False), rollout("open", correct=False)]
    (values,) = rewards(
        "grpo_lead", three
    )  # R = 1, -2, 0: mean -1/3, sd 1.52753; w(1/3) above, w(2/3) below
    above, below = (0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75))) for x in (1 / 3, 2 / 3))
    by_hand = [above * 4 / 3 / 1.52753, below * -5 / 3 / 1.52753, above * 1 / 3 / 1.52753]
    assert_rows(values, by_hand, 1e-4)
    # Nothing correct: no advantage, though a thought that never closes (0) earns more than a wrong
    # answer (-1).
    assert_rows(
        rewards("grpo_lead", [rollout("open", 50, False), rollout(RIGHT, 50, False)]), [[0, 0]]
    )


def test_arlcp():
    # Of two correct ones with 1 and 3 reflections and 100 and 300 tokens both z are -.7071 and
    # .7071; w = .05.
    one, three = "Wait, so it is#\\boxed{42}", "Wait, but check it#\\boxed{42}"
    pair = [rollout(one, 100), rollout(three, 300)]
    place = [1 / (1 + math.exp(0.5**0.5)), 1 / (1 + math.exp(-(0.5**0.5)))]
    assert_rows(
        rewards("arlcp", pair), [[2 * (1 - 0.2 * place[0]), 2 * (1 - 0.2 * place[1])]], 1e-6
    )
    # A wrong one earns nothing; so does a correct one whose thought stays open, but the statistics
    # count it.
    open_thought = [
        rollout(one, 100),
        rollout("Wait, but check it \\boxed{42}", 300),
        rollout(one, 50, False),
    ]
    assert_rows(rewards("arlcp", open_thought), [[1.5 * (1 - 0.2 * place[0]), 0, 0]], 1e-6)
    # 41 reflections: half of the penalty is theirs. Alone both z are 0.
    many = [rollout("hmm " * 41 + "#\\boxed{42}", 500), rollout("x", 5, False)]
    assert_rows(rewards("arlcp", many), [[2 * 0.9, 0]], 1e-6)
    # Words: whole ones, whatever their case; "double-check" is one.
    text = "HMM, butter: double-check, hold on. Alternatively oh"
    assert len(REFLECTION.findall(text)) == 5


def test_smartthinker():
    # Variance of the right ones 388889 > 312500 of all: the shortest, 500. e = 0, 500, 0, 1500;
    # mean 500, so alpha = .25/1000.
    assert_rows(rewards("smartthinker"), [[1, 0.875, 0, 0.625]], 1e-6)
    four = group((800, 1000, 1200, 3000), (True, True, True, False))
    assert best_lengths(batch(four).lengths.double(), batch(four).correct).item() == pytest.approx(
        982.06, abs=0.01
    )
    assert_rows(rewards("smartthinker", four), [[1, 0.9718, 0.6573, 0]], 1e-4)
    # Groups that are all right or all wrong: no length term.
    extremes = group((5, 9), (True, True)), group((5, 9), (False, False))
    assert_rows(rewards("smartthinker", *extremes), [[1, 1], [0, 0]])


FINITE = ("arora", "dler", "gdpo", "gfpo", "grpo_lead", "kimi", "lapo", "o1_pruner")
FINITE += ("pass_rate_penalty", "short_rl", "smartthinker")


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("correct", [(True,) * 4, (False,) * 4, CORRECT])
@pytest.mark.parametrize("lengths", [LENGTHS, (7, 7, 7, 7)])
def test_no_group_gives_a_reward_that_is_not_finite(name, correct, lengths):
    assert rewards(name, group(lengths, correct, text="")).isfinite().all()


def test_hapo_remembers_each_problem():
    method = objective("hapo")
    first = group((1000, 1700), (True, True), prompt="x")
    assert_rows(method.rewards(batch(first)), [[1, 1]])  # nothing is known yet
    again = restored(method)
    # h = 1000: cos(pi/2 L/h) = .7071, 0, -.7071, -1 (kept at -.7 for a right one); a short wrong
    # one earns nothing.
    second = [*group(prompt="x"), rollout(RIGHT, 500, False, prompt="x")]
    for either in (method, again):
        assert_rows(either.rewards(batch(second)), [[1.7071, 1, -0.7071, 0.3, 0]], 1e-4)
        assert either.metrics() == {"swap/hapo_known_problems": 1}
    # h = 500 now; another problem knows nothing, and a wrong answer teaches nothing.
    third = group((500,), (True,), prompt="x"), group((500,), (False,), prompt="y")
    assert_rows(method.rewards(batch(*third)), [[1], [0]], 1e-9)
    assert method.metrics() == {"swap/hapo_known_problems": 1}


def test_a_dlp_moves_its_price_after_use():
    method = objective("a_dlp")
    # A thought that never closes is wrong.
    assert_rows(
        objective("a_dlp").rewards(batch([rollout("\\boxed{42}", 100), rollout(RIGHT, 100)])),
        [[-0.1, 0.9]],
    )
    assert_rows(method.rewards(batch(group())), [[0.5, 0, -1.5, -1]])
    assert method.metrics()["swap/a_dlp_price"] == pytest.approx(0.00113)  # .001 + .001 (.75 - .62)
    again = restored(method)
    for either in (method, again):
        assert_rows(either.rewards(batch(group((100,), (False,)))), [[-0.113]])
        assert either.metrics()["swap/a_dlp_price"] == pytest.approx(0.00051)
    free = objective("a_dlp", rate=1)
    free.rewards(batch(group((100,), (False,))))
    assert free.metrics()["swap/a_dlp_price"] == 0


def test_short_rl():
    # Of the right ones, (L - 500)/1500: .5 for the shortest, .5 - 1/3, -, .5 - 1; answer and
    # format: 3, wrong -.5.
    method = objective("short_rl")
    assert_rows(method.rewards(batch(group())), [[3.5, 3 + 1 / 6, -0.5, 2.5]], 1e-6)
    # 700 is within the tolerance of 200, 701 is not: .5 - 201/1500. Unformatted: -2 - 1.
    near = [*group((500, 700, 701, 2000), (True,) * 4), rollout(UNBOXED, 400, True)]
    assert_rows(method.rewards(batch(near)), [[3.5, 3.5, 3.5 - 201 / 1500, 2.5, -3]], 1e-6)
    # The best accuracy is .8 now; .75 is not more than .05 below it, .5 is.
    assert_rows(method.rewards(batch(group())), [[3.5, 3 + 1 / 6, -0.5, 2.5]], 1e-6)
    again = restored(method)
    half = batch(group((500, 900), (True, False)))
    for either in (method, again):
        assert_rows(either.rewards(half), [[3, -0.5]])
        assert either.metrics() == {"swap/short_rl_best_accuracy": 0.8}
    assert_rows(objective("short_rl").rewards(half), [[3.5, -0.5]])


def measured(accuracy, **options):
    """AALC after its measurement."""
    method = objective("aalc", **options)
    assert method.monitor() == (500, 1)
    method.observe_monitor(
        batch([rollout("x", correct=number < 50 * accuracy) for number in range(50)])
    )
    assert method.monitor() is None
    return method


@pytest.mark.parametrize(
    ("accuracy", "weight", "shortness"), [(0.6, 0.94, 1), (0.98, 0.902, 0.9247), (1, 0.9, 0.5)]
)
def test_aalc(accuracy, weight, shortness):
    # L = 512 of 1024: 1 - min(a^128, .5); the answer weighs 1 - .1 a.
    method = measured(accuracy)
    rewards = [weight + 1e-6 * shortness, 1e-6 * shortness]
    mean, deviation = sum(rewards) / 2, statistics.stdev(rewards)
    advantages = [(reward - mean) / (deviation + 1e-6) for reward in rewards]
    assert_rows(
        method.rewards(batch([rollout("x", 512), rollout("x", 512, False)])), [advantages], 1e-5
    )
    assert method.normaliser == "none"


def test_aalc_counts_the_length_where_all_are_right():
    # a = 1; L/1024 = .25, .75: 1e-6 times .75, .25: sd 3.536e-7, so A = 2.5e-7/(3.536e-7 + 1e-6) =
    # .1847.
    groups = [rollout("x", 256), rollout("x", 768)]
    assert_rows(measured(1).rewards(batch(groups)), [[0.1847, -0.1847]], 1e-4)
    assert not measured(0.6).rewards(batch(groups)).any()  # .6^128 is next to nothing
    # Half of the target: as far as an accuracy of .5. State goes with a checkpoint.
    method = measured(0.5, target=0.5)
    again = restored(method)
    assert torch.equal(again.rewards(batch(groups)), measured(1).rewards(batch(groups)))
    assert again.monitor() is None
    again.step = 10
    assert again.monitor() == (500, 1)


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


def monitored(name="laser_d", **options):
    """A LASER-D that has seen a monitoring set: one easy, one medium and no hard problem, ten
    responses each.
    """
    method = objective(name, shortest=20, longest=100, grid=10, monitor_every=3, **options)
    assert method.monitor() == (500, 8)
    # Easy (9 of 10 right): two of ten responses within 30. int(0.2 * 5) = 1: 30 is the shortest
    # that suffices (within 20: none).
    easy = [rollout(length=30) for _ in range(2)] + [rollout(length=80) for _ in range(7)]
    easy.append(rollout(length=80, correct=False))
    # Medium (5 of 10 right): int(share * 2) >= 1 needs half of all responses, right or wrong: five
    # within 47, so 50.
    medium = [rollout(length=47, correct=False) for _ in range(5)] + [
        rollout(length=90) for _ in range(5)
    ]
    method.observe_monitor(batch(easy, medium))
    return method


def test_laser_d_chooses_targets_by_difficulty():
    method = monitored()
    assert method.metrics() == {
        "swap/laser_d_target_high": 30.0,
        "swap/laser_d_target_medium": 50.0,
    }
    # Three of three right: easy, target 30. One of three: medium, target 50. None: hard; no target
    # is known, so the longest response of the batch (200) stands in, which changes nothing without
    # a right answer.
    easy = [rollout(RIGHT, n) for n in (30, 31, 200)]
    medium = [rollout(RIGHT, 50), rollout(RIGHT, 20, correct=False), rollout(UNBOXED, 20)]
    hard = [rollout(RIGHT, 20, correct=False) for _ in range(3)]
    rewards = method.rewards(batch(easy, medium, hard))
    assert_rows(rewards, [[1.5, 1, 1], [1.5, -0.5, -1], [-0.5, -0.5, -0.5]])


def test_laser_d_thresholds_of_coverage():
    method = objective("laser_d", shortest=10, longest=10, grid=1)
    # (expected right, share within 10): 5 x .20 = 1 accepts, 5 x .19 does not; 2 x .5 accepts, 2 x
    # .49 does not; 1 x .999 does not.
    for expected_right, within, accepted in (
        (5, 200, True),
        (5, 190, False),
        (2, 500, True),
        (2, 490, False),
    ):
        lengths = torch.tensor([10] * within + [99] * (1000 - within))
        assert (method._choose(lengths, expected_right) == 10) == accepted
    assert method._choose(torch.tensor([10] * 999 + [99]), 1) is None
    assert method._choose(torch.tensor([], dtype=torch.int64), 5) is None
    # 10, 20, and no further than 25.
    assert (
        objective("laser_d", shortest=10, longest=25, grid=10)._choose(torch.tensor([24]), 5) == 25
    )
    assert (
        objective("laser_d", shortest=10, longest=25, grid=10)._choose(torch.tensor([26]), 5)
        is None
    )
    with pytest.raises(
        ConfigError,
        match=r"--swap.laser_d.shortest is 4096, .longest 2048; use shortest <= longest",
    ):
        objective("laser_d", longest=2048)


def test_laser_d_keeps_its_targets_in_the_checkpoint():
    first = monitored()
    second = restored(first)
    assert second.metrics() == first.metrics()
    assert second.monitor() is None  # not twice before the same step
    second.step = 2
    assert second.monitor() is None
    second.step = 3
    assert second.monitor() is not None


def test_laser_de_lets_wrong_answers_explore():
    # Easy group, target 30: wrong, formatted and longer earns 0.5 -> 0; at 30 it does not.
    group = [rollout(RIGHT, 30) for _ in range(6)]
    group += [rollout(RIGHT, 31, correct=False), rollout(RIGHT, 30, correct=False)]
    assert_rows(monitored("laser_de").rewards(batch(group)), [[1.5] * 6 + [0.0, -0.5]])


FOUR_STEPS = "a¶b¶c¶d#42$"

CONFIDENCE = [-0.9, -0.9, -0.1, -0.1, -0.5, -0.5, -0.3, 0, 0, 0, 0]


def confident(correct):
    return replace(rollout(FOUR_STEPS, correct=correct), logprobs=torch.tensor(CONFIDENCE))


def test_steps_end_with_a_blank_line():
    method = objective("sas")
    assert method.steps(rollout(FOUR_STEPS).response_ids, READER) == [
        (0, 2),
        (2, 4),
        (4, 6),
        (6, 7),
    ]
    assert method.steps(rollout("ab¶#42").response_ids, READER) == [(0, 3)]
    assert method.steps(rollout("#42").response_ids, READER) == []


def test_sas():
    # One right, one wrong, one right in a thought that never closes: A = 1.1547, -.5774, -.5774.
    # ceil(.3 x 4) = 2 of the least confident (-.9, -.5) are lost; of wrong ones ceil(.7 x 4) = 3
    # are kept, -.1 is lost. The open thought has one step more, which nothing follows.
    opened = rollout("a¶b¶c¶d\\boxed{42}$", correct=True)
    confidence = torch.tensor(CONFIDENCE + [-0.9] * (len(opened.response_ids) - len(CONFIDENCE)))
    group = [confident(True), confident(False), replace(opened, logprobs=confidence)]
    method = objective("sas")
    (term,) = method.token_advantages(batch(group))
    right, wrong = [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]
    assert_rows(term[0, :11], [1.1547 * scale for scale in right], 1e-4)
    assert_rows(term[1:, :11], [[-0.57735 * scale for scale in wrong]] * 2, 1e-5)
    assert method.outcome_weight == 0


def scored(text, length, gains, correct=True):
    """Steps of ten tokens with these gains."""
    ends = [10 * k + 9 for k in range(len(gains))]
    logprobs = [-9.0, *(torch.tensor(gains).cumsum(0) - 9.0).tolist()]
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
    first, second = 4 / 3 * (0.946212 - 0.45), 4 / 3 * (0.853788 - 0.45)
    # b = .25 x 19/45 = .105556 for the first one: its first step has the share 0, so .25 x 0 + .75.
    assert_rows(
        term[0, [0, 9, 10, 19, 20, 39]], [first * (1 if waits else 0.75)] * 2 + [first] * 4, 1e-5
    )
    # b = .25 x 19/85 = .055882: shares .01, 0, .99: .75 + .25 x .01/.055882 and .75.
    early = [1, 1] if waits else [0.75 + 0.0025 / 0.0558824, 0.75]
    assert_rows(
        term[1, [0, 10, 20, 79]], [second * early[0], second * early[1], second, second], 1e-5
    )
    assert_rows(term[2, :40], [-0.6] * 40, 1e-6)


def test_attnpo_spares_the_useful_steps_of_a_long_answer():
    # All right, p = 1: A < 0 for the longest; its step with a share over b = 1 x 19/85 pays
    # nothing.
    group = [scored("#" + "x" * 19, length, [1.0, 9.0]) for length in (40, 40, 80)]
    (term,) = objective("attnpo").token_advantages(batch(group))
    assert term[2, 0] < 0 and not term[2, 10:20].any() and term[2, 20] == term[2, 0]
