"""Rewards against numbers worked out by hand, a row or two for each mechanism.

tests/unit/docs/test_conformance.py has the numbers of every objective's authors, for groups that
are all right, all wrong, equally long, cut off or without a box. Where a row names no group, it is
500, 1000, 1500 and 2000 tokens, all right but the third. So p = .75, and the right lengths have a
mean of 1166.667, and a deviation of 763.763.
"""

import math
import statistics

import pytest
from support.objectives import RIGHT, UNBOXED, assert_rows, group, objective, rewards, rollout

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.peers.formats import is_degenerate


def case(name, expected, *groups, within=1e-6, **options):
    """The rewards of some groups, by default the one above."""
    return pytest.param(name, expected, groups, within, options, id=name)


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def grpo(rewards, plus=(0,) * 9):
    mean, deviation = statistics.fmean(rewards), statistics.stdev(rewards)
    return [(r - mean) / deviation + more for r, more in zip(rewards, plus, strict=False)]


ROOT = 0.5**0.5
CUT_OFF = rollout(RIGHT, 50, True, truncated=True)

# GRPO-LEAD: R = 1, -2, 0: mean -1/3, sd 1.52753; w(1/3) above, w(2/3) below.
ONE_RIGHT = rollout(RIGHT, 50)
SO_SO = rollout("so " * 10, correct=False)
ABOVE, BELOW = (0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75))) for x in (1 / 3, 2 / 3))
LEAD = [ABOVE * 4 / 3 / 1.52753, BELOW * -5 / 3 / 1.52753, ABOVE * 1 / 3 / 1.52753]

# ARLCP: of two correct ones with 1 and 3 reflections and 100 and 300 tokens both z are -+.7071.
ONE, THREE = "Wait, so it is#\\boxed{42}", "Wait, but check it#\\boxed{42}"
STAYS_OPEN = rollout("Wait, but check it \\boxed{42}", 300)
FEW, MANY = 0.2 * sigmoid(-ROOT), 0.2 * sigmoid(ROOT)

# L1: n = 1000.
EXACT, MAXIMUM = "q Think for 1000 tokens.<a>", "q Think for maximum 1000 tokens.<a>"
MAXIMA = group((800, 1200, 1500, 1600, 400, 800), (1, 1, 1, 1, 1, 0), prompt=MAXIMUM)
MAXIMA += [rollout(RIGHT, 1300, prompt=EXACT), rollout("\\boxed{42}", 800, prompt=MAXIMUM)]

# SABER: thoughts of 128, 129, 129 tokens; the newline before the end does not count; an open one.
LIMITED = "p Think for maximum 128 tokens.<a><think>\n"
SHUT = "p Answer without thinking.<a><think>\n\n</think>\n\n"
BOX = "#\\boxed{42}"
BUDGETED = [rollout(BOX, 139, prompt=LIMITED), rollout(BOX, 140, prompt=LIMITED)]
BUDGETED += [rollout(BOX, 140, False, prompt=LIMITED), rollout("\n" + BOX, 140, prompt=LIMITED)]
BUDGETED += [rollout("\\boxed{42}", 20, prompt=LIMITED)]
# A right answer without a box earns nothing; what ends with its thought pays for no length.
BUDGETED += [rollout("#42", 140, prompt=LIMITED), rollout("#$", 140, False, prompt=LIMITED)]
UNLIMITED = [rollout(RIGHT, 900, prompt="p<a>"), rollout("\\boxed{42}", 900, prompt=SHUT)]
UNLIMITED += [rollout(BOX, 900, prompt=SHUT)]
# Where the template leaves the thought to the model, the response opens it, once.
UNLIMITED += [rollout("<think>\nab" + BOX, prompt="p<a>")]
UNLIMITED += [rollout("<think><think>ab" + BOX, prompt="p<a>")]
UNLIMITED += [rollout("<think>ab" + BOX, prompt="p<a><think>\n")]

# HBPO: f(512) = 3.9231, f(1024) = 3.6955. 1000 for 512: f(1000) - 488/4096 = 3.5903; 400: 3.9257,
# at most 3.9231. 1100 for 1024: 4 cos(pi 1100/8192) - 76/4096; one without the format: -1.
HBPO = [*group((1000, 400), (1, 1), part=0), rollout(RIGHT, 1100, part=1)]
HBPO += [rollout(UNBOXED, 1100, part=1)]
EARNED = [3.5903, 3.9231, 4 * math.cos(math.pi * 1100 / 8192) - 76 / 4096, -1]
INTRA = [2 * ((3.5903 + 3.9231) / 2 - 3.9231)] * 2 + [2 * ((EARNED[2] - 1) / 2 - 3.6955)] * 2
BEYOND = [rollout(RIGHT, 400, False, part=0), rollout(RIGHT, 4097, part=0)]


@pytest.mark.parametrize(
    ("name", "expected", "groups", "within", "options"),
    [
        # Right: 500, 1000, 2000; median 1000. P = 1 for the last, so r = 1, 1, 0, 0.
        case("outcome_only", [[1, 1, 0, 0]]),
        # c: .5, .5, -1.5, .5; [L <= 1200]: .866, .866, -.866, -.866; the sum, whitened over 5000
        # tokens.
        case("gdpo", [[1.2525, 1.2525, -1.3266, 0.0556]], within=1e-4, target_length=1200),
        # A reward is used up, never turned: 1 - 1.5. The longest is the longest correct one.
        case("pass_rate_penalty", [[0, 0.25]], group((40, 20), (True, True)), weight=1.5),
        case("pass_rate_penalty", [[0.9, 0]], group((20, 40), (True, False))),
        # Cut off is wrong, whatever the grader says: nothing has spread then.
        case("dler", [[0, 0]], [rollout(RIGHT, 50, False), CUT_OFF]),
        # Cut off: wrong, and out of the statistics. One right one: z = 0. None: 0.
        case(
            "arora",
            [[2 * 0.9, 0], [0, 0]],
            [*group((10,), (True,), ""), CUT_OFF],
            group((5, 9), (False, False)),
            alpha=0.2,
        ),
        # The three shortest have 1000 tokens on average: lengths do not count. R = 1, 1, -1, 1: sd
        # 1, A = .5 and -1.5; w(.75) = .95 above the mean, w(.25) = 1.4926 below.
        case("grpo_lead", [[0.475, 0.475, -1.5 * 1.492636, 0.475]], within=1e-5),
        # Repeating itself -2; an open thought 0.
        case("grpo_lead", [LEAD], [ONE_RIGHT, SO_SO, rollout("open", correct=False)], within=1e-4),
        case("arlcp", [[2 * (1 - FEW), 2 * (1 - MANY)]], [rollout(ONE, 100), rollout(THREE, 300)]),
        # A wrong one earns nothing; so does a correct one whose thought stays open, but the
        # statistics count it.
        case(
            "arlcp",
            [[1.5 * (1 - FEW), 0, 0]],
            [rollout(ONE, 100), STAYS_OPEN, rollout(ONE, 50, False)],
        ),
        # Variance of the right ones 388889 > 312500 of all: the shortest, 500. e = 0, 500, 0, 1500;
        # mean 500, so alpha = .25/1000.
        case("smartthinker", [[1, 0.875, 0, 0.625]]),
        # Slope 1/1000, delta .5: L = 800 -> .7, 1200 -> .3, 1500 -> 0, 1600 -> clipped: 0, 400 ->
        # clipped: 1; wrong -> 0. A row with an exact budget is scored as L1-Exact: 300 tokens off
        # cost .09. A thought that never closes is wrong, whatever it boxes.
        case("l1_max", [[0.7, 0.3, 0, 0, 1, 0, 0.91, 0]], MAXIMA),
        case("saber", [[1, 0.6, -0.4, 1, -0.2, -0.4, 0]], BUDGETED),
        case("saber", [[1, 1, -0.2, 1, -0.2, -0.2]], UNLIMITED),
        case("hbpo", [grpo(EARNED, INTRA)], HBPO, within=2e-4, budgets="512,1024"),
        # Wrong, and right beyond the longest: 0.
        case("hbpo", [[-2 * 3.9231] * 2], BEYOND, within=2e-4, budgets="512"),
        # The end token does not count. 11 and 21 tokens with it: 1 - 10/20 = .5 and 0; without it
        # the second one has 21: 1 - 10/21.
        case("lc_r1", [[2.5, 2]], [rollout("#$", 11), rollout("#$", 21)], within=1e-4),
        case("lc_r1", [[3 - 10 / 21, 2]], [rollout("#$", 11), rollout("#", 21)], within=1e-4),
    ],
)
def test_rewards(name, expected, groups, within, options):
    assert_rows(rewards(name, *groups, **options), expected, within)


def test_a_setting_out_of_range_and_normalisers():
    with pytest.raises(ConfigError, match=r"--swap.gfpo.share is '2', which should be"):
        objective("gfpo", share=2)
    expected = {"kimi": "group", "dr_grpo": "centre", "on_policy_sft": "none"}
    assert {name: objective(name).normaliser for name in expected} == expected


@pytest.mark.parametrize(
    ("text", "degenerate"),
    [
        ("so " * 10, True),
        ("so " * 9, False),
        ("we try again " * 10, True),
        ("x " + "we try again " * 11, True),  # ten times "again we try"
        ("x " + "we try again " * 10, False),
        ("one " * 9 + "two " * 9, False),
        ("x" * 120, True),
        (" ".join(str(n) for n in range(400)), False),
        ((" ".join(f"w{n}" for n in range(31)) + " ") * 10, False),  # phrases of 30 words at most
        ("", False),
    ],
)
def test_degenerate_texts(text, degenerate):
    assert is_degenerate(text) == degenerate
