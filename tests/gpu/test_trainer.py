"""The policy's actor on a GPU with DeepSpeed: asleep between updates, saved, resumed."""

from unittest import mock

import pytest
import torch
from support.actors import changed
from support.paths import POLICY

STEPS = 3


@pytest.fixture(scope="module", params=[2, 3])
def runs(request, arguments, tmp_path_factory):
    """Weights and sizes after a run, and after one that was resumed behind its first update."""
    folder = tmp_path_factory.mktemp("run")
    settings = {
        "ds.zero_stage": request.param,
        "ds.enable_sleep": True,
        "ckpt.path": str(folder),
        "train.batch_size": 4,
        "train.micro_batch_size": 1,
        "actor.adam.lr": 1e-4,
    }
    whole = Run(changed(arguments, settings))
    whole.update(0)
    whole.actor.save_checkpoint("global_step1", {"step": 1})
    for step in range(1, STEPS):
        whole.update(step)
    resumed = Run(changed(arguments, settings | {"ckpt.load_enable": True}))
    assert resumed.actor.get_checkpoint_states()["step"] == 1
    for step in range(1, STEPS):
        resumed.update(step)
    return whole, resumed


def start_actor(args):
    """The policy's actor in this process, the only rank, without engines."""
    # The package prepares the process before OpenRLHF is imported.
    from openrlhf_swap.integration.policy.actors import IntrinsicRewardActor
    from openrlhf_swap.integration.policy.strategy import SwapStrategy

    from openrlhf.utils import get_strategy  # isort: skip

    args.local_rank = -1
    with mock.patch("openrlhf.utils.deepspeed.DeepspeedStrategy", SwapStrategy):
        strategy = get_strategy(args)
    strategy.print = lambda *words: None
    actor = IntrinsicRewardActor(1, 0, "127.0.0.1", None)
    actor.init_model_from_pretrained(strategy, args.actor.model_name_or_path, 1000, None)
    return actor


def random_response(generator):
    """A micro-batch of a prompt of 100 random tokens and a response of as many."""
    actions = torch.ones(1, 199, dtype=torch.bool)
    actions[:, :99] = False
    return {
        "sequences": torch.randint(50, (1, 200), generator=generator),
        "action_mask": actions,
        "attention_mask": torch.ones(1, 200, dtype=torch.int64),
    }


def experience_of(batch, log_probs):
    """What an update reads of a response: advantages that change their sign within it."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    actions = batch["action_mask"]
    advantages = torch.linspace(1, -1, actions.shape[1])[None] * actions
    numbers = {"action_log_probs": log_probs, "advantages": advantages, "returns": advantages}
    return Experience(**batch, **numbers, index=[0], info={"reward": torch.ones(1)})


class Run:
    """A policy's actor that is updated step by step.

    Attributes: awake, asleep: the GPU's memory in use after each update, in bytes. norms: the norm
        of each update's gradient.
    """

    def __init__(self, args):
        self.actor = start_actor(args)
        self.awake = []
        self.asleep = []
        self.norms = []

    def update(self, step):
        generator = torch.Generator().manual_seed(step)
        batches = [random_response(generator) for _ in range(4)]
        log_probs = [self.actor.forward(**batch) for batch in batches]
        self.actor.reload_states()
        for batch, own in zip(batches, log_probs, strict=True):
            self.actor.append(experience_of(batch, own))
        status = self.actor.fit()
        self.norms.append(float(status["actor_grad_norm"]))
        self.awake.append(torch.cuda.memory_allocated())
        self.actor.offload_states()
        self.asleep.append(torch.cuda.memory_allocated())

    def weights(self):
        import deepspeed

        parameters = list(self.actor.actor.model.module.parameters())
        with deepspeed.zero.GatheredParameters(parameters):
            return torch.cat([weight.detach().float().flatten() for weight in parameters]).cpu()


def test_the_policy_learns(runs):
    whole, _ = runs
    start = torch.cat([weight.flatten() for weight in _base()])
    assert 1e-5 < (whole.weights() - start).abs().max() < 0.1


def test_a_resumed_run_has_the_weights_of_an_undisturbed_one(runs):
    whole, resumed = runs
    assert resumed.norms == pytest.approx(whole.norms[1:], rel=1e-3)
    assert torch.equal(resumed.weights(), whole.weights())


def test_a_sleeping_optimizer_leaves_the_gpu_also_after_a_resume(runs):
    """Two float32 moments and the master copy are twelve bytes a parameter."""
    size = sum(weight.numel() for weight in _base())
    for run in runs:
        freed = [awake - asleep for awake, asleep in zip(run.awake, run.asleep, strict=True)]
        assert min(freed) >= 0.95 * 12 * size


def _base():
    from transformers import AutoModelForCausalLM

    return list(AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32).parameters())
