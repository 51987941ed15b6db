"""Objectives from the entropies of steps, by hand; `tests/conformance` has their authors'."""

import pytest
import torch
from support.objectives import assert_rows, batch, objective, rollout

from openrlhf_swap.objectives.peers.entropies import least_informative


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


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("infodensity", ("entropy",)), ("swap", ("answer_logprobs",)), ("grpo", ())],
)
def test_what_they_want_of_the_policy(name, wanted):
    assert objective(name).wanted_signals == wanted


@pytest.mark.parametrize("name", ["infodensity", "etr", "step_entropy"])
def test_responses_without_steps(name):
    """A thought that is closed at once has no entropies, whatever the others of its batch."""
    method = objective(name)
    pair = batch([rollout("", 5), rollout("", 7, correct=False)])
    assert method.rewards(pair).shape == (1, 2)
    if name == "step_entropy":
        (term,) = method.token_advantages(pair)
        assert_rows(term, [[0.70711] * 7, [-0.70711] * 7], 1e-5)
