"""Real actors on the quickstart's policy, and batches for them."""

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

END = "</think>"
CLOSE = "</think>\n\n**Final Answer**\n\\boxed{"
GROUPS = 4
GROUP_SIZE = 4
# The places of each group's responses in a batch.
MEMBERS = [range(first, first + GROUP_SIZE) for first in range(0, GROUPS * GROUP_SIZE, GROUP_SIZE)]


def make_config(**changes):
    """SWAP's settings for the quickstart's policy, with these changes."""
    return SwapConfig(step_tokens=8, end_of_thought=END, close_template=CLOSE, **changes)


@contextmanager
def running_actors(arguments, ranks=1, engines=None):
    """Start IntrinsicRewardActors in a real Ray actor group; yields the group and its strategy."""
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
    actor_class = ray.remote(num_gpus=1)(IntrinsicRewardActor)
    group = RayActorGroup(1, ranks, actor_class, pg=places)
    try:
        started = group.async_init_model_from_pretrained(strategy, str(POLICY), 10, engines)
        ray.get(started, timeout=900)
        yield group, strategy
    finally:
        for actor in group._actor_handlers:
            ray.kill(actor)
        remove_placement_group(places)


def response_to(tokenizer, prompt, answer, text, reward):
    """A response as vLLM's actor returns it."""
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    response_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    start = len(prompt_ids)
    return {
        "prompt": prompt,
        "label": answer,
        "observation_tokens": prompt_ids + response_ids,
        "action_ranges": [(start, start + len(response_ids))],
        "rollout_log_probs": None,
        "reward": float(reward),
        "scores": float(reward),
    }


def rollouts_of(responses):
    """Read an engine's responses as rollouts."""
    from openrlhf_swap.integration.engine.responses import read_response

    return [read_response(response) for response in responses]


def make_row(response, context=400):
    """Make OpenRLHF's row of an engine's response."""
    from openrlhf_swap.integration.driver.experience import experience_row, fit_context

    (rollout,) = rollouts_of([response])
    return experience_row(fit_context(rollout, context), context)


def rows_of(experiences):
    """The advantages and the log-probabilities of each response, in the order of the batch."""
    rows = {}
    for experience in experiences:
        for row, index in enumerate(experience.index):
            used = experience.action_mask[row].bool()
            advantages = experience.advantages[row][used]
            log_probs = experience.action_log_probs[row][used]
            rows[index] = (advantages, log_probs)
    return [rows[index] for index in range(len(rows))]


def stock_rows(actor_group, tokenizer, responses):
    """The rows of the experiences that OpenRLHF's own maker makes of an engine's responses."""
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    group, strategy = actor_group
    no_kl = FixedKLController(0.0)
    maker = RemoteExperienceMaker(group, None, None, None, no_kl, strategy, tokenizer)
    rows = [make_row(response) for response in responses]
    return rows_of(maker.make_experience_batch(rows))


def make_policy(actor_group, tokenizer, config):
    """Give the actors to a driver's Policy, for a run of these settings."""
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
        from openrlhf_swap.runs.metrics import batch_metrics

        return batch_metrics(self.batch, self.terms, self.objective)


def learn(policy, objective, reader, rollouts, size=GROUP_SIZE):
    """Do with rollouts what `Loop.step` does with them between sampling and update."""
    from openrlhf_swap.integration.driver.advantages import set_advantages
    from openrlhf_swap.integration.driver.batch import batch_of, cut_into_steps
    from openrlhf_swap.objectives.base import evaluate

    rollouts = cut_into_steps([rollouts], objective, reader)
    forward = policy.forward(rollouts, objective)
    batch = batch_of(forward.rollouts, size, objective, reader)
    judged = evaluate(objective, batch)
    maker = policy.experience_maker()
    terms = set_advantages(maker, forward, objective, judged)
    return Learned(forward.micro_batches, batch, terms, objective)


def learn_from(actor_group, tokenizer, responses, config):
    """Call `learn` with an engine's responses and the objective of these settings."""
    objective = build(config)
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    policy = make_policy(actor_group, tokenizer, config)
    return learn(policy, objective, reader, rollouts_of(responses))


def changed(arguments, changes):
    """A copy of nested arguments in which some dotted names have other values."""
    arguments = copy.deepcopy(arguments)
    for dotted, value in changes.items():
        *path, name = dotted.split(".")
        part = functools.reduce(getattr, path, arguments)
        setattr(part, name, value)
    return arguments
