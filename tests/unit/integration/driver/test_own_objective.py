"""An objective of one's own that errs: the first batch ends in one line that names it, the method
and the shapes.
"""

import math
import pickle
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from support.actors import GROUP_SIZE, GROUPS, make_config, make_sample
from support.objectives import rollout
from support.trainers import make_rollout_batch, make_training_actor, strategy_of

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import SwapError
from openrlhf_swap.integration.driver import trainer
from openrlhf_swap.integration.driver.experience_maker import (
    RemoteExperienceMaker,
    SwapExperienceMaker,
)
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rollouts.rollout import StepReader

LONGEST = 8  # tokens of the longest response below


@pytest.fixture(scope="module")
def experiences_of(arguments, tokenizer):
    """A function that gives the experiences of a batch on which an objective has put its
    advantages.
    """
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    def make(objective):
        reader = StepReader(
            tokenizer, objective.config.end_of_thought, *objective.config.segmentation
        )
        parts = (
            None,
            None,
            None,
            None,
            FixedKLController(0.0),
            SimpleNamespace(args=arguments),
            tokenizer,
        )
        maker = SwapExperienceMaker(RemoteExperienceMaker(*parts), objective, reader)
        samples = []
        for row in range(GROUPS * GROUP_SIZE):
            ids = [5, 6, *range(7, 7 + LONGEST - row % 3)]
            response = {
                "prompt": "p",
                "label": "4",
                "observation_tokens": ids,
                "action_ranges": [(2, len(ids))],
            }
            response |= {"reward": float(row % 2), "scores": 0.0, "rollout_log_probs": None}
            samples.append(make_sample(response))
        experiences = maker.split_rollout_samples(samples)
        known = [
            {"logprobs": torch.zeros(len(r.response_ids))} for r in maker._rollouts
        ]  # as the policy would
        if objective.reads_states:
            states = [torch.randn(len(r.step_ends) + 1, 3) for r in maker._rollouts]
            known = [{"signals": {"states": each}} for each in states]
        maker._rollouts = [
            replace(r, **values) for r, values in zip(maker._rollouts, known, strict=True)
        ]
        for experience in experiences:
            experience.kl = torch.zeros(experience.action_mask.shape)
        return maker.compute_advantages_and_returns(experiences)

    return make


def objective_with(**methods):
    kind = type("Mine", (Objective,), methods)
    return kind(make_config(objective="my_module:Mine"))


def nan_at(batch, *place, of):
    values = of.clone()
    values[place] = torch.nan
    return values


REWARDS = {
    "one response too many": (
        lambda self, batch: torch.zeros(GROUPS, GROUP_SIZE + 1, dtype=torch.float64),
        r"(4, 5); expected a tensor of shape (4, 4), (groups, responses a group)",
    ),
    "one group too many": (
        lambda self, batch: batch.rewards.repeat(2, 1),
        "(8, 4); expected a tensor of shape",
    ),
    "flat": (
        lambda self, batch: batch.rewards.flatten(),
        "(16,); expected a tensor of shape (4, 4)",
    ),
    "NaN": (
        lambda self, batch: nan_at(batch, 1, 2, of=batch.rewards),
        "nan at (1, 2); expected finite numbers",
    ),
    "infinite": (lambda self, batch: batch.rewards / 0, "nan at (0, 0)"),
    "too large for float32": (lambda self, batch: 1e308 + 0 * batch.rewards, "1e+308 at (0, 0)"),
    "a list": (
        lambda self, batch: batch.rewards.tolist(),
        "list; expected a tensor of shape (4, 4)",
    ),
    "nothing": (lambda self, batch: None, "NoneType; expected a tensor"),
}


@pytest.mark.parametrize("case", REWARDS)
def test_wrong_rewards(experiences_of, case):
    method, message = REWARDS[case]
    with pytest.raises(SwapError) as error:
        experiences_of(objective_with(rewards=method))
    assert str(error.value).startswith(
        "--swap.objective is my_module:Mine, whose `rewards` returned "
    )
    assert message in str(error.value)
    assert str(error.value).endswith("fix Mine.rewards")


def test_rewards_of_another_order_of_axes(experiences_of):
    """(N, G) instead of (G, N): of the same shape where both are 4, so it is an error only where
    they differ.
    """
    columns = lambda self, batch: batch.rewards[:, :3].T  # noqa: E731
    with pytest.raises(
        SwapError, match=r"`rewards` returned \(3, 4\); expected a tensor of shape \(4, 4\)"
    ):
        experiences_of(objective_with(rewards=columns))


TOKENS = {
    "one token too few": (
        (GROUPS, GROUP_SIZE, LONGEST - 1),
        "(4, 4, 7); expected a tensor of shape (4, 4, 8)",
    ),
    "one value a response": ((GROUPS, GROUP_SIZE), "(4, 4); expected a tensor of shape (4, 4, 8)"),
    "axes in another order": (
        (GROUP_SIZE, LONGEST, GROUPS),
        "(4, 8, 4); expected a tensor of shape (4, 4, 8)",
    ),
}


@pytest.mark.parametrize("case", TOKENS)
def test_wrong_token_advantages(experiences_of, case):
    shape, message = TOKENS[case]
    wrong = objective_with(
        token_advantages=lambda self, batch: torch.zeros(shape, dtype=torch.float64)
    )
    with pytest.raises(SwapError) as error:
        experiences_of(wrong)
    assert "my_module:Mine, whose `token_advantages` returned " + message in str(error.value)


def test_a_token_advantage_that_is_not_finite(experiences_of):
    zeros = torch.zeros(GROUPS, GROUP_SIZE, LONGEST, dtype=torch.float64)
    with pytest.raises(SwapError, match=r"nan at \(1, 1, 5\)"):
        experiences_of(
            objective_with(token_advantages=lambda self, batch: nan_at(batch, 1, 1, 5, of=zeros))
        )
    # The second response has 7 tokens: what stands behind them reaches no update.
    behind = objective_with(token_advantages=lambda self, batch: nan_at(batch, 0, 1, 7, of=zeros))
    plain = experiences_of(objective_with())
    for with_nan, without in zip(experiences_of(behind), plain, strict=True):
        assert torch.equal(with_nan.advantages, without.advantages)


# The others need what their own sampling puts into a rollout, or scores of its steps.
SAMPLED_OTHERWISE = {"adaptthink", "hbpo", "l1_exact", "l1_max", "lc_r1", "s_grpo"}
PLAIN = [
    name
    for name in OBJECTIVES
    if name not in SAMPLED_OTHERWISE and not build(make_config(objective=name)).scores_steps
]


@pytest.mark.parametrize("name", PLAIN)
def test_every_objective_keeps_the_contract(experiences_of, name):
    for experience in experiences_of(build(make_config(objective=name))):
        assert experience.advantages.isfinite().all()


def test_the_choice_of_a_part_counts_in_the_probability_of_the_first_token():
    maker = SwapExperienceMaker.__new__(SwapExperienceMaker)
    choices = [{"chance": 0.5, "forced": 1.0}, {"chance": 0.75, "forced": 0.0}, {}]
    maker._rollouts = [
        rollout("ab", **metadata) for metadata in choices
    ]  # after five tokens of the prompt
    log_probs = torch.full((3, 7), -3.0)
    maker._patch_behaviour(SimpleNamespace(index=[0, 1, 2], action_log_probs=log_probs))
    expected = torch.full((3, 7), -3.0)
    expected[0, 4], expected[1, 4] = math.log(0.5), math.log(0.75) - 3.0
    torch.testing.assert_close(log_probs, expected)


def test_the_step_of_a_batch_travels_with_it(monkeypatch, arguments, tmp_path):
    """The asynchronous learner asks for rewards of the step that the generator had counted."""
    its_own, seen = build(SwapConfig(objective="grpo")), []
    monkeypatch.setattr(trainer, "build", lambda _: its_own)
    actor = make_training_actor(strategy_of(arguments, tmp_path))
    step = lambda self, samples, step: seen.append(its_own.step) or ({}, step + 1)  # noqa: E731
    monkeypatch.setattr(trainer.TrainerMixin, "train_step", step)
    monkeypatch.setattr(trainer, "weight_updates", lambda _: 0)
    for number in (1, 2, 3, 7):
        actor.train_step(
            pickle.loads(pickle.dumps(make_rollout_batch(["sample"], {}, 0, number))), 0
        )
    assert seen == [1, 2, 3, 7]
