"""Real actors on the embedded policy, and batches for them."""

import copy
import functools
from contextlib import contextmanager
from unittest import mock

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import StepReader
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


def make_sample(response):
    """The sample that the generator makes of a response that no objective changes."""
    from openrlhf_swap.integration.generation import sampling as forms

    return forms.make_sample(forms.read_response(response), 400)


def make_experiences(maker_class, actor_group, tokenizer, responses, **options):
    """Run a real experience maker on fresh copies of the responses; returns its micro-batches."""
    from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

    group, strategy = actor_group
    maker = maker_class(
        group, None, None, None, FixedKLController(0.0), strategy, tokenizer, **options
    )
    samples = [make_sample(response) for response in responses]
    return maker, maker.make_experience_batch(samples)


def rows_of(experiences):
    """The advantages and log-probabilities of each response, in order."""
    rows = {}
    for experience in experiences:
        for row, index in enumerate(experience.index):
            used = experience.action_mask[row].bool()
            rows[index] = (experience.advantages[row][used], experience.action_log_probs[row][used])
    return [rows[index] for index in range(len(rows))]


def make_batch(maker_class, actor_group, tokenizer, responses, **options):
    """Run `make_experience`; returns the maker and the rows of its experiences."""
    maker, experiences = make_experiences(maker_class, actor_group, tokenizer, responses, **options)
    return maker, rows_of(experiences)


def makers():
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    from openrlhf_swap.integration.driver.experience_maker import SwapExperienceMaker

    def swap_maker(*args, config):
        reader = StepReader(args[-1], config.end_of_thought, *config.segmentation)
        return SwapExperienceMaker(RemoteExperienceMaker(*args), build(config), reader)

    return RemoteExperienceMaker, swap_maker


def changed(arguments, changes):
    arguments = copy.deepcopy(arguments)
    for dotted, value in changes.items():
        *path, name = dotted.split(".")
        setattr(functools.reduce(getattr, path, arguments), name, value)
    return arguments
