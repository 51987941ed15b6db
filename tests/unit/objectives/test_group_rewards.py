"""Objectives whose reward or advantage is a number for each response, against numbers worked out by hand.

Most of them on one group: 500, 1000, 1500 and 2000 tokens, all right but the third. So p = .75, and the right lengths
have a mean of 1166.667, a deviation of 763.763, and one of 623.610 as a population.
"""

import math
import random
import statistics
from types import SimpleNamespace

import pytest
from support.objectives import RIGHT, UNBOXED, assert_rows, batch, objective, rollout

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.group_rewards import REFLECTION, best_lengths

LENGTHS, CORRECT = (500, 1000, 1500, 2000), (True, True, False, True)


def group(lengths=LENGTHS, correct=CORRECT, text=RIGHT, **more):
    return [rollout(text, length, right, **more) for length, right in zip(lengths, correct, strict=True)]


def rewards(name, *groups, **options):
    return objective(name, **options).rewards(batch(*(groups or [group()])))


def centred(values):
    return values - values.mean(-1, keepdim=True)


def test_shorterbetter():
    # The shortest right one has 500: 2, 2 - .5, 0 - 1, 2 - 1.5.
    values = rewards("shorterbetter")
    assert_rows(values, [[2, 1.5, -1, 0.5]])
    assert_rows(outcome_advantages(values, 1e-6), [[0.9449, 0.5669, -1.3229, -0.1890]], 1e-4)
    # None is right: the mean, 200.
    assert_rows(rewards("shorterbetter", group((100, 300), (False, False))), [[-0.1, -0.1]])


def test_arora():
    # z = (L - 1166.667)/623.610; sigmoid .2556, .4336, .7919; R = .97444, .95664, 0, .92081; RLOO: 4/3 (R - mean).
    values = rewards("arora")
    z = [(length - 3500 / 3) / statistics.pstdev([500, 1000, 2000]) for length in LENGTHS]
    by_hand = [right * (1 - 0.1 / (1 + math.exp(-place))) for right, place in zip(CORRECT, z, strict=True)]
    assert [round(value, 4) for value in by_hand] == [0.9744, 0.9566, 0, 0.9208]
    assert_rows(values, [[4 / 3 * value for value in by_hand]], 1e-6)
    assert_rows(centred(values), [[0.3486, 0.3249, -0.9506, 0.2771]], 1e-4)
    # Cut off: wrong, and out of the statistics. One right one: z = 0. None: 0.
    cut = [*group((10,), (True,)), rollout(RIGHT, 90, True, truncated=True)]
    assert_rows(rewards("arora", cut, group((5, 9), (False, False)), alpha=0.2), [[2 * 0.9, 0], [0, 0]], 1e-6)


def test_kimi():
    # (L - 500)/1500 = 0, 1/3, 2/3, 1.
    assert_rows(rewards("kimi"), [[1.5, 1 + 1 / 6, -1 / 6, 0.5]])
    assert_rows(rewards("kimi", weight=0.4), [[1.2, 1 + 0.4 / 6, -0.4 / 6, 0.8]])
    # A short wrong one earns nothing for it; equal lengths: no length reward.
    assert_rows(rewards("kimi", group((21, 23), (False, True)), group((27, 27), (False, True))), [[0, 0.5], [0, 1]])


def test_grpo_lead():
    # z of the right ones = (L - mean)/763.763 = -.8729, -.2182, 1.0911; exp(-.05 z); weights w(.75) = .95 of what is
    # above the mean, w(.25) = 1.4926 of what is below.
    longer = group([4000 + length for length in LENGTHS])
    assert_rows(rewards("grpo_lead", longer), [[0.5162, 0.4842, -2.2371, 0.4234]], 1e-4)
    # The three shortest have 1000 tokens on average: lengths do not count. R = 1, 1, -1, 1: sd 1, A = .5 and -1.5.
    assert_rows(rewards("grpo_lead"), [[0.475, 0.475, -1.5 * 1.492636, 0.475]], 1e-5)
    # Without the format 0, between right and wrong: R = 1, 0: mean .5, sd .7071.
    pair = [rollout(RIGHT, 50), rollout(UNBOXED, 50)]
    weight = 0.4 + 1.1 / (1 + math.exp(-2.5))
    assert_rows(rewards("grpo_lead", pair), [[weight * 0.5**0.5, -weight * 0.5**0.5]], 1e-5)
    # Unformatted and repeating itself -2: R = 1, -2: mean -.5, sd 2.1213.
    repeats = [rollout(RIGHT, 50), rollout("so " * 10, correct=False)]
    assert_rows(rewards("grpo_lead", repeats), [[weight * 0.5**0.5, -weight * 0.5**0.5]], 1e-5)
    three = [rollout(RIGHT, 50), rollout("so " * 10, correct=False), rollout("open", correct=False)]
    (values,) = rewards("grpo_lead", three)  # R = 1, -2, 0: mean -1/3, sd 1.52753; w(1/3) above, w(2/3) below
    above, below = (0.4 + 1.1 / (1 + math.exp(10 * (x - 0.75))) for x in (1 / 3, 2 / 3))
    by_hand = [above * 4 / 3 / 1.52753, below * -5 / 3 / 1.52753, above * 1 / 3 / 1.52753]
    assert_rows(values, by_hand, 1e-4)
    # Nothing correct: no advantage, though a thought that never closes (0) earns more than a wrong answer (-1).
    assert_rows(rewards("grpo_lead", [rollout("open", 50, False), rollout(RIGHT, 50, False)]), [[0, 0]])


def test_step_grpo():
    # k = 1, 3, 2, 2; mu of the correct ones 2: .9 (1 - .5 tanh(+-.5)) + .1; wrong: the box alone.
    texts = ("so#", "Wait, Wait#", "Wait#", "Wait: await, Waiting#")
    four = [rollout(text + "\\boxed{42}", correct=number != 2) for number, text in enumerate(texts)]
    change = 0.45 * math.tanh(0.5)
    assert_rows(rewards("step_grpo", four), [[1 + change, 1 - change, 0.1, 1]])
    # Two without a correct one, with and without a box: mu is not needed.
    assert_rows(
        rewards("step_grpo", [rollout("a#\\boxed{4}", correct=False), rollout("a#4", correct=False)]), [[0.1, 0]]
    )


def test_saber():
    limited = "p Think for maximum 128 tokens.<a><think>\n"
    # Thoughts of 128, 129, 129 tokens; the newline before the end does not count; an open one.
    four = [rollout("#\\boxed{42}", 139, prompt=limited), rollout("#\\boxed{42}", 140, prompt=limited)]
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
    sentences = ("", " Answer without thinking.", " Think for maximum 128 tokens.", " Think for maximum 4096 tokens.")
    assert texts == {"q" + sentence for sentence in sentences}


def test_cosine():
    # Half of the way: the middle. At 0 tokens the short numbers, at the limit and beyond it the long ones.
    four = group((50, 50, 100, 200), (True, False, True, False), text="")
    assert_rows(rewards("cosine", four, max_length=100), [[0.75, -0.75, 0.5, -0.5]])
    # A quarter: long + (short - long)/2 (1 + cos 45 degrees).
    quarter = [rollout(length=25), rollout(length=25, correct=False)]
    assert_rows(
        rewards("cosine", quarter, max_length=100),
        [[0.5 + 0.25 * (1 + 0.5**0.5), -0.5 - 0.25 * (1 + 0.5**0.5)]],
    )


def test_gfpo():
    # The three shortest: 1, 1, 0; mean 2/3, sd .57735.
    assert_rows(rewards("gfpo", share=0.75), [[0.5773, 0.5773, -1.1545, 0]], 1e-4)
    # Half of four by default: 500 and 1000, both right.
    assert_rows(rewards("gfpo"), [[0, 0, 0, 0]])


def test_gdpo():
    # c: .5, .5, -1.5, .5; [L <= 1200]: .866, .866, -.866, -.866; the sum, whitened over 5000 tokens.
    assert_rows(rewards("gdpo", target_length=1200), [[1.2525, 1.2525, -1.3266, 0.0556]], 1e-4)
    assert_rows(rewards("gdpo", group((5, 7), (True, True))), [[0, 0]])


def test_dler():
    # c - p = .25, .25, -.75, .25; mean over 5000 tokens -.05, sd .4583.
    assert_rows(rewards("dler"), [[0.6546, 0.6546, -1.5274, 0.6546]], 1e-4)
    # Whitened over the batch: a group that is all right gets minus the mean,
    # with 5000 tokens more of 0: m = -.025, v = (3500 * .275^2 + 1500 * .725^2 + 5000 * .025^2)/10000.
    both = rewards("dler", group(), group((1250,) * 4, (True,) * 4))
    assert_rows(both[1], [0.025 / math.sqrt(0.105625)] * 4, 1e-4)
    # Cut off is wrong, whatever the grader says: nothing has spread then.
    cut = [rollout(RIGHT, 50, False), rollout(RIGHT, 50, True, truncated=True)]
    assert_rows(rewards("dler", cut), [[0, 0]])
    # So is a box in a thought that never closes: 0 and 1, L = 50 each: -.5 and .5; v = 100 * .25/99.
    unclosed = [rollout("\\boxed{42}", 50), rollout(RIGHT, 50)]
    assert_rows(rewards("dler", unclosed), [[-0.5 / math.sqrt(25 / 99), 0.5 / math.sqrt(25 / 99)]], 1e-6)


def test_dr_grpo_is_centred():
    method = objective("dr_grpo")
    assert method.normaliser == "centre"
    assert_rows(method.rewards(batch(group())), [[1, 1, 0, 1]])


def test_prime_linear():
    # p w = .1875, times .25, .5, .75, 1.
    values = rewards("prime_linear")
    assert_rows(values, [[0.953125, 0.90625, -0.140625, 0.8125]])
    assert_rows(centred(values), [[0.3203, 0.2734, -0.7734, 0.1797]], 1e-4)


def test_prime_linear_gated():
    # Only correct answers pay: the third one keeps 0.
    assert_rows(rewards("prime_linear", gated=1), [[0.953125, 0.90625, 0, 0.8125]])
    with pytest.raises(ConfigError, match=r"--swap.prime_linear.gated is '2', which should be"):
        objective("prime_linear", gated=2)


def test_pass_rate_penalty():
    # p = .75, the longest correct has 2000: .2 x .75 L/2000 = .15 (.25, .5, -, 1).
    assert_rows(rewards("pass_rate_penalty"), [[0.9625, 0.925, 0, 0.85]])
    # The wrong answer's 40 tokens do not count as the longest: 1 - .2 x .5.
    assert_rows(rewards("pass_rate_penalty", group((20, 40), (True, False))), [[0.9, 0]])
    # A reward is used up, never turned: 1 - 1.5.
    assert_rows(rewards("pass_rate_penalty", group((40, 20), (True, True)), weight=1.5), [[0, 0.25]])
    assert_rows(rewards("pass_rate_penalty", group((40, 20), (False, False))), [[0, 0]])


def test_pass_rate_penalty_as_reviews_quote_alp():
    # c - .0001 max(.75, 1/4) L, wrong answers too; without a correct one 1/4 is left.
    assert_rows(rewards("pass_rate_penalty", form="alp", beta=1e-4), [[0.9625, 0.925, -0.1125, 0.85]])
    nothing = group(correct=(False,) * 4)
    assert_rows(rewards("pass_rate_penalty", nothing, form="alp", beta=1e-4), [[-0.0125, -0.025, -0.0375, -0.05]])


def test_gr3():
    # Mean length 1250: 1/(1 + .33 L/1250).
    assert_rows(rewards("gr3"), [[1 / 1.132, 1 / 1.264, 0, 1 / 1.528]])
    assert_rows(rewards("gr3", alpha=0), [[1, 1, 0, 1]])


def test_on_policy_sft():
    # 3500 of 5000 tokens are correct ones': each weighs 5000/3500, so that the sum over all tokens is their number.
    assert_rows(rewards("on_policy_sft"), [[10 / 7, 10 / 7, 0, 10 / 7]])
    # Nor does it matter what was cut off: 150 of 200 tokens are correct ones'.
    cut = [rollout(RIGHT, 100, truncated=True), rollout(RIGHT, 50), rollout(RIGHT, 50, False)]
    assert_rows(rewards("on_policy_sft", cut), [[4 / 3, 4 / 3, 0]])
    assert_rows(rewards("on_policy_sft", group((5, 7), (False, False))), [[0, 0]])
    assert objective("on_policy_sft").normaliser == "none"


def test_arlcp():
    # Of two correct ones with 1 and 3 reflections and 100 and 300 tokens both z are -.7071 and .7071; w = .05.
    one, three = "Wait, so it is#\\boxed{42}", "Wait, but check it#\\boxed{42}"
    pair = [rollout(one, 100), rollout(three, 300)]
    place = [1 / (1 + math.exp(0.5**0.5)), 1 / (1 + math.exp(-(0.5**0.5)))]
    assert_rows(rewards("arlcp", pair), [[2 * (1 - 0.2 * place[0]), 2 * (1 - 0.2 * place[1])]], 1e-6)
    # A wrong one earns nothing; so does a correct one whose thought stays open, but the statistics count it.
    open_thought = [rollout(one, 100), rollout("Wait, but check it \\boxed{42}", 300), rollout(one, 50, False)]
    assert_rows(rewards("arlcp", open_thought), [[1.5 * (1 - 0.2 * place[0]), 0, 0]], 1e-6)
    # 41 reflections: half of the penalty is theirs. Alone both z are 0.
    many = [rollout("hmm " * 41 + "#\\boxed{42}", 500), rollout("x", 5, False)]
    assert_rows(rewards("arlcp", many), [[2 * 0.9, 0]], 1e-6)
    # Words: whole ones, whatever their case; "double-check" is one.
    text = "HMM, butter: double-check, hold on. Alternatively oh"
    assert len(REFLECTION.findall(text)) == 5


def test_smartthinker():
    # Variance of the right ones 388889 > 312500 of all: the shortest, 500. e = 0, 500, 0, 1500; mean 500, so
    # alpha = .25/1000.
    assert_rows(rewards("smartthinker"), [[1, 0.875, 0, 0.625]], 1e-6)
    four = group((800, 1000, 1200, 3000), (True, True, True, False))
    assert best_lengths(batch(four).lengths.double(), batch(four).correct).item() == pytest.approx(982.06, abs=0.01)
    assert_rows(rewards("smartthinker", four), [[1, 0.9718, 0.6573, 0]], 1e-4)
    # Groups that are all right or all wrong: no length term.
    extremes = group((5, 9), (True, True)), group((5, 9), (False, False))
    assert_rows(rewards("smartthinker", *extremes), [[1, 1], [0, 0]])


def test_o1_pruner():
    # mean L/L - 1 = 1.5, .25, -.1667, -.375; + 5 (c - p): 2.75, 1.5, -3.917 -> -2, .875; z-score as a population.
    assert_rows(rewards("o1_pruner"), [[1.1302, 0.4126, -1.5967, 0.0538]], 1e-4)
    assert_rows(rewards("o1_pruner", group((5, 5), (True, True))), [[0, 0]])


def test_hbpo_promises_a_budget_in_every_response():
    method = objective("hbpo")
    parts = method.sampling("<u>1+1?<a><think>\n", 8, 4096)
    assert [(part.count, part.forced.split()[-2]) for part in parts] == [
        (2, n) for n in ("512", "1024", "2048", "2560")
    ]
    assert parts[0].forced == "I will answer the question with 512 tokens"
    assert method.sampling("<u>1+1?<a>", 4, 4096)[0].forced == "<think> I will answer the question with 512 tokens"
    with pytest.raises(ConfigError, match=r"n_samples_per_prompt is 6, but --swap.hbpo.budgets has 4"):
        method.check(SimpleNamespace(rollout=SimpleNamespace(n_samples_per_prompt=6)))
    with pytest.raises(ConfigError, match=r"--swap.hbpo.budgets is 'few'"):
        objective("hbpo", budgets="few")


def test_hbpo():
    # f(512) = 3.9231, f(1024) = 3.6955. 1000 for 512: f(1000) - 488/4096 = 3.5903; 400: 3.9257, at most 3.9231.
    # 1100 for 1024: 4 cos(pi 1100/8192) - 76/4096 = 3.6290; one without the format: -1.
    both = [rollout(RIGHT, 1000, part=0), rollout(RIGHT, 400, part=0), rollout(RIGHT, 1100, part=1)]
    both.append(rollout(UNBOXED, 1100, part=1))
    earned = [3.5903, 3.9231, 4 * math.cos(math.pi * 1100 / 8192) - 76 / 4096, -1]
    mean, deviation = statistics.fmean(earned), statistics.stdev(earned)
    intra = [(3.5903 + 3.9231) / 2 - 3.9231] * 2 + [(earned[2] - 1) / 2 - 3.6955] * 2
    expected = [(r - mean) / deviation + 2 * term for r, term in zip(earned, intra, strict=True)]
    assert_rows(rewards("hbpo", both, budgets="512,1024"), [expected], 2e-4)
    # Of two ends of a thought the first one counts: what stands between them has a box, or has none.
    two = [rollout("a#\\boxed{42}#b", 400, part=0), rollout("a#b#\\boxed{42}", 400, part=0)]
    earned = [3.9231 * 0.5**0.5 / 2 * 2, 0]  # as unequal rewards, of 3.9231 and -1: A = .7071 and -.7071
    intra = 2 * ((3.9231 - 1) / 2 - 3.9231)
    assert_rows(rewards("hbpo", two, budgets="512"), [[0.5**0.5 + intra, -(0.5**0.5) + intra]], 2e-4)
    # Wrong, and right beyond the longest: 0.
    nothing = [rollout(RIGHT, 400, False, part=0), rollout(RIGHT, 4097, part=0)]
    assert_rows(rewards("hbpo", nothing, budgets="512"), [[-2 * 3.9231] * 2], 2e-4)


FINITE = [
    "arora",
    "dler",
    "gdpo",
    "gfpo",
    "grpo_lead",
    "kimi",
    "lapo",
    "o1_pruner",
    "pass_rate_penalty",
    "short_rl",
    "smartthinker",
]


@pytest.mark.parametrize("name", FINITE)
@pytest.mark.parametrize("correct", [(True,) * 4, (False,) * 4, CORRECT])
@pytest.mark.parametrize("lengths", [LENGTHS, (7, 7, 7, 7)])
def test_no_group_gives_a_reward_that_is_not_finite(name, correct, lengths):
    assert rewards(name, group(lengths, correct, text="")).isfinite().all()
