"""Real actors on the embedded policy, and batches for them."""

import copy
import functools
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.reader import StepReader
from support.paths import POLICY

END, CLOSE = "</think>", "</think>\n\n**Final Answer**\n\\boxed{"
GROUPS, GROUP_SIZE = 4, 4
MEMBERS = [range(first, first + GROUP_SIZE) for first in range(0, GROUPS * GROUP_SIZE, GROUP_SIZE)]


def make_config(**changes):
    return SwapConfig(step_tokens=8, end_of_thought=END, close_template=CLOSE, **changes)


@contextmanager
def running_actors(arguments, ranks=1, engines=None):
    """IntrinsicRewardActors in a real Ray actor group, and the strategy that made them."""
    import ray
    from openrlhf.trainer.ray.launcher import RayActorGroup
    from openrlhf.utils import get_strategy
    from ray.util import placement_group, remove_placement_group

    from openrlhf_swap.integration.policy.actors import IntrinsicRewardActor
    from openrlhf_swap.integration.policy.strategy import SwapStrategy

    with mock.patch("openrlhf.utils.deepspeed.DeepspeedStrategy", SwapStrategy):
        strategy = get_strategy(arguments)
    places = placement_group([{"GPU": 1, "CPU": 1}] * ranks)
    ray.get(places.ready(), timeout=300)
    group = RayActorGroup(1, ranks, ray.remote(num_gpus=1)(IntrinsicRewardActor), pg=places)
    try:
        ray.get(
            group.async_init_model_from_pretrained(strategy, str(POLICY), 10, engines), timeout=900
        )
        yield group, strategy
    finally:
        for actor in group._actor_handlers:
            ray.kill(actor)
        remove_placement_group(places)


def response_to(tokenizer, prompt, answer, text, reward):
    """A response as vLLM's actor returns it."""
    head, tail = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (prompt, text))
    tokens = {
        "observation_tokens": head + tail,
        "action_ranges": [(len(head), len(head) + len(tail))],
    }
    common = {"prompt": prompt, "label": answer, "rollout_log_probs": None}
    return {**common, **tokens, "reward": float(reward), "scores": float(reward)}


def rollouts_of(responses):
    """The rollouts of responses that no objective changes."""
    from openrlhf_swap.integration.engine.responses import read_response

    return [read_response(response) for response in responses]


def make_row(response, context=400):
    """OpenRLHF's row of such a response."""
    from openrlhf_swap.integration.driver.rows import experience_row, fit_context

    (rollout,) = rollouts_of([response])
    return experience_row(fit_context(rollout, context), context)


def rows_of(experiences):
    """The advantages and log-probabilities of each response, in order."""
    rows = {}
    for experience in experiences:
        for row, index in enumerate(experience.index):
            used = experience.action_mask[row].bool()
            rows[index] = (experience.advantages[row][used], experience.action_log_probs[row][used])
    return [rows[index] for index in range(len(rows))]


def stock_rows(actor_group, tokenizer, responses):
    """What OpenRLHF's own experience maker makes of responses: the rows of its experiences."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    group, strategy = actor_group
    no_kl = FixedKLController(0.0)
    maker = RemoteExperienceMaker(group, None, None, None, no_kl, strategy, tokenizer)
    return rows_of(maker.make_experience_batch([make_row(response) for response in responses]))


def make_policy(actor_group, tokenizer, config):
    """The driver's view of the actors, for a run of these settings."""
    from openrlhf_swap.integration.driver.policy import Policy

    group, strategy = actor_group
    strategy = copy.copy(strategy)
    strategy.args = changed(strategy.args, {"swap": config})
    return Policy(strategy, tokenizer, group, None, [])


@dataclass
class Learned:
    """What the loop makes of a batch before the update."""

    experiences: list
    batch: Any
    terms: Any
    objective: Any

    @property
    def rollouts(self):
        return [rollout for group in self.batch.groups for rollout in group]

    @property
    def rows(self):
        return rows_of(self.experiences)

    @property
    def metrics(self):
        from openrlhf_swap.integration.driver.batch import describe

        return describe(self.batch, self.experiences, self.terms, self.objective)


def learn(policy, objective, reader, rollouts, size=GROUP_SIZE):
    """Do with rollouts what `Loop.step` does with them between sampling and update."""
    from openrlhf_swap.integration.driver.batch import batch_of, cut_into_steps
    from openrlhf_swap.objectives.base import evaluate

    rollouts = cut_into_steps([rollouts], objective, reader)
    experiences, rollouts = policy.forward(rollouts, objective)
    batch = batch_of(rollouts, size, objective, reader)
    terms = policy.set_advantages(experiences, objective, *evaluate(objective, batch))
    return Learned(experiences, batch, terms, objective)


def learn_from(actor_group, tokenizer, responses, config):
    """Do this with an engine's responses and the objective of these settings."""
    objective = build(config)
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    policy = make_policy(actor_group, tokenizer, config)
    return learn(policy, objective, reader, rollouts_of(responses))


def changed(arguments, changes):
    arguments = copy.deepcopy(arguments)
    for dotted, value in changes.items():
        *path, name = dotted.split(".")
        setattr(functools.reduce(getattr, path, arguments), name, value)
    return arguments
