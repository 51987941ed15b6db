"""Which objectives penalise long wrong responses: what each class declares is what it does."""

import json
from dataclasses import replace

import pytest
import torch
from support.objectives import RIGHT, batch, objective, rollout

from openrlhf_swap.integration.startup.settling import warn_of_long_wrong
from openrlhf_swap.objectives.base import evaluate
from openrlhf_swap.objectives.registry import OBJECTIVES
from openrlhf_swap.rollouts.rollout import prompt_key

WRONG = "thought#\\boxed{7}"
PROMPT = "p Think for 1000 tokens."  # a budget, for the objectives that read one
CORRECT = (True, True, False, False, False)
LENGTHS = (600, 900, 700, 1400, 5000)  # the wrong ones with rising length


def probe():
    """A group of two correct and three wrong responses, which differ in length alone."""
    group = []
    for length, is_correct in zip(LENGTHS, CORRECT, strict=True):
        text = RIGHT if is_correct else WRONG
        response = rollout(text, length, is_correct, prompt=PROMPT, part=0.0)
        group.append(replace(response, logprobs=torch.zeros(length)))
    return batch(group)


def penalises_length(method):
    """Whether a longer wrong response of the probe earns less, in any stage of the objective."""
    for step in (0, 300, 500):
        method.resume(step)
        method.sampling(PROMPT, len(LENGTHS), 8192)  # stages begin here
        for _ in range(2):  # in the second visit lengths of the problem are known
            rewards = evaluate(method, probe()).rewards[0, 2:]
            if (rewards.diff() < -1e-3).any():
                return True
    return False


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_declares_what_it_does_with_wrong_responses(name, tmp_path):
    options = {}
    if name == "adaptthink":
        options["reference"] = tmp_path / "reference.jsonl"
        accuracies = {"key": prompt_key(PROMPT), "accuracy": 0.5}
        options["reference"].write_text(json.dumps(accuracies) + "\n")
    method = objective(name, **options)
    assert method.penalises_long_wrong == penalises_length(method)
    assert len(warn_of_long_wrong(method).messages) == method.penalises_long_wrong
