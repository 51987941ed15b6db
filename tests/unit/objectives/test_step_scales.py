"""SAS and AttnPO, against numbers worked out by hand."""

from dataclasses import replace

import pytest
import torch
from support.objectives import READER, assert_rows, batch, objective, rollout

FOUR_STEPS = "a¶b¶c¶d#42$"
CONFIDENCE = [-0.9, -0.9, -0.1, -0.1, -0.5, -0.5, -0.3, 0, 0, 0, 0]


def confident(correct):
    return replace(rollout(FOUR_STEPS, correct=correct), logprobs=torch.tensor(CONFIDENCE))


def test_steps_end_with_a_blank_line():
    method = objective("sas")
    assert method.steps(rollout(FOUR_STEPS), READER) == [(0, 2), (2, 4), (4, 6), (6, 7)]
    assert method.steps(rollout("ab¶#42"), READER) == [(0, 3)]
    assert method.steps(rollout("#42"), READER) == []


@pytest.mark.parametrize(
    ("variant", "right", "wrong"),
    [
        # ceil(.3 x 4) = 2 of the least confident (-.9, -.5) are lost; ceil(.7 x 4) = 3 kept, -.1 lost.
        ("paper", [0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1]),
        ("released", [0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1], [1] * 11),
    ],
)
def test_sas(variant, right, wrong):
    # One right, one wrong: A = .7071 and -.7071.
    method = objective("sas", variant=variant)
    (term,) = method.token_advantages(batch([confident(True), confident(False)]))
    assert_rows(term, [[0.70711 * scale for scale in right], [-0.70711 * scale for scale in wrong]], 1e-5)
    assert method.outcome_weight == 0


def scored(text, length, gains, correct=True):
    """Steps of ten tokens with these gains."""
    ends = [10 * k + 9 for k in range(len(gains))]
    logprobs = [-9.0, *(torch.tensor(gains).cumsum(0) - 9.0).tolist()]
    return replace(rollout(text, length, correct), step_ends=ends, answer_logprobs=logprobs)


@pytest.mark.parametrize(("step", "waits"), [(501, False), (500, True)])
def test_attnpo(step, waits):
    # Lengths 40 and 80, p = 1/2, z = -1 and 1: R = 1 - .2 sigmoid(z) = .94621, .85379, 0, 0; A = 4/3 (R - .45).
    short = scored("#" + "x" * 19, 40, [0.0, 4.0])
    long = scored("#" + "x" * 19, 80, [1.0, 0.0, 99.0])
    wrong = [scored("#x", 40, [1.0, 1.0], False)] * 2
    method = objective("attnpo")
    method.step = step
    (term,) = method.token_advantages(batch([short, long, *wrong]))
    first, second = 4 / 3 * (0.946212 - 0.45), 4 / 3 * (0.853788 - 0.45)
    # b = .25 x 19/45 = .105556 for the first one: its first step has the share 0, so .25 x 0 + .75.
    assert_rows(term[0, [0, 9, 10, 19, 20, 39]], [first * (1 if waits else 0.75)] * 2 + [first] * 4, 1e-5)
    # b = .25 x 19/85 = .055882: shares .01, 0, .99: .75 + .25 x .01/.055882 and .75.
    early = [1, 1] if waits else [0.75 + 0.0025 / 0.0558824, 0.75]
    assert_rows(term[1, [0, 10, 20, 79]], [second * early[0], second * early[1], second, second], 1e-5)
    assert_rows(term[2, :40], [-0.6] * 40, 1e-6)


def test_attnpo_spares_the_useful_steps_of_a_long_answer():
    # All right, p = 1: A < 0 for the longest; its step with a share over b = 1 x 19/85 pays nothing.
    group = [scored("#" + "x" * 19, length, [1.0, 9.0]) for length in (40, 40, 80)]
    (term,) = objective("attnpo").token_advantages(batch(group))
    assert term[2, 0] < 0 and not term[2, 10:20].any() and term[2, 20] == term[2, 0]
