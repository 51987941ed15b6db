"""The policy's actor on a GPU with DeepSpeed: asleep between updates, saved, resumed."""

import pytest
import torch
from support.actors import changed
from support.paths import POLICY

STEPS = 3


@pytest.fixture(scope="module", params=[2, 3])
def runs(request, arguments, tmp_path_factory):
    """Weights and sizes after a run, and after one that was resumed behind its first update."""
    folder = tmp_path_factory.mktemp("run")
    settings = {"ds.zero_stage": request.param, "ds.enable_sleep": True, "ckpt.path": str(folder)}
    settings |= {"train.batch_size": 4, "train.micro_batch_size": 1, "actor.adam.lr": 1e-4}
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


class Run:
    def __init__(self, args):
        from benchmarks.policy_step import start_actor

        self.actor = start_actor(args)
        self.awake, self.asleep, self.norms = [], [], []

    def update(self, step):
        from benchmarks.policy_step import Responses, experience

        responses = Responses(4, 200, 5, 50, seed=step)
        batches = [responses.batch(row) for row in range(4)]
        log_probs = [self.actor.forward(**batch) for batch in batches]
        self.actor.reload_states()
        for row in range(4):
            self.actor.append(experience(batches[row], log_probs[row]))
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
