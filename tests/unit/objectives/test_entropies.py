"""Objectives from the entropies of steps, by hand; `tests/conformance` has their authors'."""

import math
from dataclasses import replace

import pytest
import torch
from support.objectives import RIGHT, assert_rows, batch, objective, rollout

from openrlhf_swap.objectives.peers.entropies import least_informative, trace_quality

E = math.e
LOG5 = math.log(5)


def told(entropies, correct=True, length=None, ends=None):
    """A response whose steps of ten tokens, or those that end there, have these entropies."""
    ends = list(range(9, 10 * len(entropies), 10)) if ends is None else ends
    steps = replace(rollout(RIGHT, length or 10 * len(entropies) + 20, correct), step_ends=ends)
    return steps.with_signals(entropy=entropies)


def test_infodensity_by_hand():
    # Envelopes 2, 1 and 3, 3, 1: q = 1 - 1.5/4 = .625 and 1 - 7/3/4 = 5/12; one step alone: 1.
    values = torch.tensor([[2.0, 1.0, 7.0], [1.0, 3.0, 1.0], [9.0, 7.0, 7.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0]]).bool()
    assert_rows(trace_quality(values, mask, E**4).double(), [0.625, 5 / 12, 1], 1e-5)
    # One correct response, and lengths that do not differ: no length factor.
    pair = [told([2.0, 1.0], length=100), told([0.0, 0.0], correct=False)]
    assert_rows(objective("infodensity").rewards(batch(pair)), [[1 - 1.5 / LOG5, 0]], 1e-5)


def test_step_entropy():
    # Sums 20 x .1, 5 x .5, 5 x .1, 10 x .3: 2, 2.5, .5, 3. Half of four: the third and the first.
    # One right of two: A = .7071 and -.7071; a wrong one keeps all steps.
    ends = [19, 24, 29, 39]
    pair = [told([0.1, 0.5, 0.1, 0.3], ends=ends), told([0.1] * 4, correct=False, ends=ends)]
    method = objective("step_entropy", share=0.5)
    (term,) = method.token_advantages(batch(pair))
    scales = [0] * 20 + [1] * 5 + [0] * 5 + [1] * 30
    assert_rows(term, [[0.70711 * scale for scale in scales], [-0.70711] * 60], 1e-5)
    assert method.outcome_weight == 0


@pytest.mark.parametrize(
    ("information", "share", "silent"),
    [
        ([3, 1, 2, 5, 4], 0.8, [1, 1, 1, 0, 1]),
        ([3, 1, 2, 5, 4], 0.5, [0, 1, 1, 0, 0]),  # int(2.5)
        ([1, 1, 1], 0.4, [1, 0, 0]),  # a tie goes to the first
        ([1], 0.8, [0]),
    ],
)
def test_the_steps_that_say_least(information, share, silent):
    values = torch.tensor([[*information, -1.0, -1.0]])
    mask = torch.tensor([[True] * len(information) + [False] * 2])
    assert least_informative(values, mask, share).int().tolist() == [[*silent, 0, 0]]


def test_what_they_want_of_the_policy():
    wanted = {name: objective(name).wanted_signals for name in ("infodensity", "swap", "grpo")}
    assert wanted == {"infodensity": ("entropy",), "swap": ("answer_logprobs",), "grpo": ()}


@pytest.mark.parametrize("name", ["infodensity", "etr", "step_entropy"])
def test_responses_without_steps(name):
    """A thought that is closed at once has no entropies, whatever the others of its batch."""
    method = objective(name)
    pair = batch([rollout("", 5), rollout("", 7, correct=False)])
    assert method.rewards(pair).shape == (1, 2)
    if name == "step_entropy":
        assert_rows(method.token_advantages(pair)[0], [[0.70711] * 7, [-0.70711] * 7], 1e-5)
