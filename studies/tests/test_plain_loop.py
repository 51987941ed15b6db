"""The loop in one process: its sampler beside the model, arms by hand, and objectives as arms."""

import math
from copy import deepcopy
from itertools import islice

import pytest
import torch

from openrlhf_swap import StepTrace, SwapConfig
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.quickstart.world import rendered
from studies.credit.arms import arm_settings, arm_signals
from studies.credit.plain_loop import RESPONSES, Loop, loop_of
from studies.credit.sampling import sample
from studies.toy_tasks import repeated


@pytest.fixture(scope="module")
def loop():
    return Loop("columns", step_price="weights")


def test_sampled_scores_are_the_models_own(loop):
    model = deepcopy(loop.model).float()
    problems = islice(loop.world.problems(4), 6)
    prompts = [loop.reader.ids(rendered(problem.question)) for problem in problems]
    end = loop.tokenizer.eos_token_id
    torch.manual_seed(0)
    sampled = sample(model, prompts, end, loop.tokenizer.pad_token_id, max_tokens=60)
    responses, scores = sampled.responses, sampled.log_probs
    assert any(response[-1] == end for response in responses)
    for prompt, response, own in zip(prompts, responses, scores, strict=True):
        assert end not in response[:-1] and (response[-1] == end or len(response) == 60)
        with torch.no_grad():
            logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(response)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(own), expected, rtol=0, atol=1e-4)


# Gains 1, 0, 0 and 1, 0; redundant are the last step of the first response and of the other.
FIRST = StepTrace(30, True, [-3, -2, -2, -2], [4, 9, 19])
OTHER = StepTrace(10, True, [-3, -2, -2], [3, 7])
GROUP = StepBatch.from_traces([[FIRST, OTHER]])
REDUNDANT = torch.tensor([[[False, False, True], [False, True, False]]])
E1 = 1 / (1 + math.e)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("oracle", [[0, 0, 1], [0, 1, 0]]),
        ("anti", [[0.5, 0.5, 0], [1, 0, 0]]),
        ("uniform", [[1 / 3] * 3, [0.5, 0.5, 0]]),
        ("tau1", [None, [E1, 1 - E1, 0]]),
    ],
)
def test_weights_by_labels_by_hand(kind, expected):
    arm = f"weights.{kind}"
    weights = arm_signals(arm, SwapConfig(**arm_settings(arm)), GROUP, REDUNDANT).weights[0]
    for row, wanted in zip(weights.tolist(), expected, strict=True):
        assert wanted is None or row == pytest.approx(wanted)


def lesson_of(arm, **settings):
    """What the arm learns from the same responses to one problem."""
    loop = loop_of("words", arm, settings)
    problems = repeated(islice(loop.world.problems(1), 1), RESPONSES)
    torch.manual_seed(0)
    return loop.lesson(arm, problems)


@pytest.mark.parametrize(("name", "arm"), [("swap", "steps.tau1"), ("grpo", "grpo")])
def test_an_objective_of_the_package_is_the_arm_of_the_same_arithmetic(name, arm):
    settings = {"process_weight": 0.3, "step_discount": 0.5}
    of_objective = lesson_of(f"objective.{name}", **settings)
    of_arm = lesson_of(arm, **settings)
    assert of_objective.responses == of_arm.responses
    torch.testing.assert_close(of_objective.advantages, of_arm.advantages, rtol=0, atol=1e-5)
    assert of_arm.advantages.any()
