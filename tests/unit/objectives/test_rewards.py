"""Rewards of unusual responses, by hand: cut off, open, repeating, or asked for a budget.

tests/unit/docs/test_conformance.py has the numbers of every objective's authors.
"""

import math

import pytest
from support.objectives import RIGHT, assert_rows, group, objective, rewards, rollout

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.peers.formats import is_degenerate

BOX = "#\\boxed{42}"


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def test_outcome_only_pays_for_length():
    # Right: 500, 1000 and 2000 tokens, the median is 1000. P = 1 for the last.
    assert_rows(rewards("outcome_only"), [[1, 1, 0, 0]], 1e-6)


def test_hmpo_pays_up_to_the_median_length():
    # Right: 500, 1000 and 2000 tokens; cos(pi/4) + .2 for half of the median.
    assert_rows(rewards("hmpo", floor=0.2), [[math.sqrt(0.5) + 0.2, 0.2, 0, 0]])
    assert_rows(rewards("hmpo"), [[1, 0.8, 0, 0]])
    assert_rows(rewards("hmpo", group((5, 9), (False, False))), [[0, 0]])


def test_opo_takes_the_mean_over_tokens_for_its_baseline():
    # Of 5,000 tokens 3,500 belong to right responses: the baseline is .7.
    assert_rows(rewards("opo"), [[0.3, 0.3, -0.7, 0.3]])
    assert_rows(rewards("opo", group((5, 9), (False, False))), [[0, 0]])


def test_dler_takes_a_response_that_was_cut_off_for_wrong():
    pair = [rollout(RIGHT, 50, correct=False), rollout(RIGHT, 50, truncated=True)]
    assert_rows(rewards("dler", pair), [[0, 0]])


def test_arora_leaves_a_response_that_was_cut_off_out_of_its_statistics():
    # One right response is left, whose z is 0; in the other group none is.
    one = [rollout("", 10), rollout(RIGHT, 50, truncated=True)]
    none = group((5, 9), (False, False))
    assert_rows(rewards("arora", one, none, alpha=0.2), [[2 * 0.9, 0], [0, 0]], 1e-6)


def test_grpo_lead_charges_repetition():
    # R = 1, -2 for repeating itself, 0 for an open thought: mean -1/3, deviation 1.52753.
    responses = [
        rollout(RIGHT, 50),
        rollout("so " * 10, correct=False),
        rollout("open", correct=False),
    ]
    above = 0.4 + 1.1 * sigmoid(-10 * (1 / 3 - 0.75))  # w of the share of right responses
    below = 0.4 + 1.1 * sigmoid(-10 * (2 / 3 - 0.75))
    expected = [above * 4 / 3, below * -5 / 3, above * 1 / 3]
    found = rewards("grpo_lead", responses)
    assert_rows(found * 1.52753, [expected], 1e-4)


def test_arlcp_pays_nothing_for_an_open_thought_but_counts_it():
    # Of 100 tokens with one reflection and 300 with three both z are -+.7071.
    responses = [
        rollout("Wait, so it is" + BOX, 100),
        rollout("Wait, but check it \\boxed{42}", 300),
        rollout("Wait, so it is" + BOX, 50, correct=False),
    ]
    few = 0.2 * sigmoid(-math.sqrt(0.5))
    assert_rows(rewards("arlcp", responses), [[1.5 * (1 - few), 0, 0]], 1e-6)


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        # Slope 1/1000, delta .5: clipped at 0 and 1.
        (rollout(RIGHT, 800, prompt="q Think for maximum 1000 tokens.<a>"), 0.7),
        (rollout(RIGHT, 1200, prompt="q Think for maximum 1000 tokens.<a>"), 0.3),
        (rollout(RIGHT, 1600, prompt="q Think for maximum 1000 tokens.<a>"), 0),
        (rollout(RIGHT, 400, prompt="q Think for maximum 1000 tokens.<a>"), 1),
        (rollout(RIGHT, 800, False, prompt="q Think for maximum 1000 tokens.<a>"), 0),
        # A row with an exact budget is scored as L1-Exact: 300 tokens off cost .09.
        (rollout(RIGHT, 1300, prompt="q Think for 1000 tokens.<a>"), 0.91),
        # A thought that never closes is wrong, whatever it boxes.
        (rollout("\\boxed{42}", 800, prompt="q Think for maximum 1000 tokens.<a>"), 0),
    ],
)
def test_l1_max(response, reward):
    assert_rows(rewards("l1_max", [response]), [[reward]], 1e-6)


LIMITED = "p Think for maximum 128 tokens.<a><think>\n"
SHUT = "p Answer without thinking.<a><think>\n\n</think>\n\n"


@pytest.mark.parametrize(
    ("text", "length", "correct", "prompt", "reward"),
    [
        # Thoughts of 128 and 129 tokens; the newline before the end does not count.
        (BOX, 139, True, LIMITED, 1),
        (BOX, 140, True, LIMITED, 0.6),
        (BOX, 140, False, LIMITED, -0.4),
        ("\n" + BOX, 140, True, LIMITED, 1),
        ("\\boxed{42}", 20, True, LIMITED, -0.2),  # open
        # A right answer without a box earns nothing; what ends with its thought pays for no length.
        ("#42", 140, True, LIMITED, -0.4),
        ("#$", 140, False, LIMITED, 0),
        (RIGHT, 900, True, "p<a>", 1),
        ("\\boxed{42}", 900, True, SHUT, 1),
        (BOX, 900, True, SHUT, -0.2),
        # Where the template leaves the thought to the model, the response opens it, once.
        ("<think>\nab" + BOX, None, True, "p<a>", 1),
        ("<think><think>ab" + BOX, None, True, "p<a>", -0.2),
        ("<think>ab" + BOX, None, True, "p<a><think>\n", -0.2),
    ],
)
def test_saber(text, length, correct, prompt, reward):
    response = rollout(text, length, correct, prompt)
    assert_rows(rewards("saber", [response]), [[reward]], 1e-6)


def test_hbpo_pays_nothing_beyond_its_longest_response():
    # f(512) = 3.9231; a wrong one, and a right one of more than 4,096 tokens.
    pair = [rollout(RIGHT, 400, correct=False, part=0), rollout(RIGHT, 4097, part=0)]
    assert_rows(rewards("hbpo", pair, budgets="512"), [[-2 * 3.9231] * 2], 2e-4)


def test_lc_r1_does_not_count_the_end_token():
    # 10 and 20 tokens without it: 1 - 10/20 and 0. The second response has none here: 1 - 10/21.
    with_it = [rollout("#$", 11), rollout("#$", 21)]
    assert_rows(rewards("lc_r1", with_it), [[2.5, 2]], 1e-4)
    without = [rollout("#$", 11), rollout("#", 21)]
    assert_rows(rewards("lc_r1", without), [[3 - 10 / 21, 2]], 1e-4)


def test_a_setting_out_of_range():
    with pytest.raises(ConfigError, match=r"--swap.gfpo.share is '2', which should be"):
        objective("gfpo", share=2)


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
        (" ".join(map(str, range(400))), False),
        ((" ".join(map(str, range(31))) + " ") * 10, False),  # phrases of 30 words at most
        ("", False),
    ],
)
def test_degenerate_texts(text, degenerate):
    assert is_degenerate(text) == degenerate
