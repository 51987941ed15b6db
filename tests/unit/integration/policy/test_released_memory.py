"""The memory that the policy returns to its GPU: only where another process waits for it."""

from types import SimpleNamespace

import pytest
import torch
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from support.actors import changed

from openrlhf_swap.integration.patches import undecorated
from openrlhf_swap.integration.policy.actors import IntrinsicRewardActor, SwapPolicyTrainer

UPDATE = ["train", "ppo_train with 0.1", "clear"]


@pytest.fixture
def calls(monkeypatch):
    """The calls of an actor's parts, and of the one that empties torch's cache, in order."""
    made = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: made.append("empty_cache"))
    return made


def actor_around(calls, args):
    """An actor whose model and trainer say what they are asked to do."""

    def train_once(kl_ctl):
        calls.append(f"ppo_train with {kl_ctl}")
        return {"policy_loss": 1.5}

    actor = object.__new__(IntrinsicRewardActor)
    model = SimpleNamespace(skipped_steps=0)
    actor.actor = SimpleNamespace(train=lambda: calls.append("train"), model=model)
    buffer = SimpleNamespace(clear=lambda: calls.append("clear"))
    actor.trainer = SimpleNamespace(ppo_train=train_once, replay_buffer=buffer)
    actor.strategy = SimpleNamespace(args=args, all_reduce=lambda value, op: value)
    actor._scorer = SimpleNamespace(metrics={"swap/scored_one_by_one": 0.0})
    return actor


@pytest.mark.parametrize("sleeps", [True, False])
def test_an_update_is_openrlhfs_but_for_the_memory(calls, arguments, sleeps):
    args = changed(arguments, {"vllm.enable_sleep": sleeps})
    actor = actor_around(calls, args)
    theirs = undecorated(PolicyModelActor).fit(actor, 0.1)
    assert [call for call in calls if call != "empty_cache"] == UPDATE
    calls.clear()
    ours = actor.fit(0.1)
    assert calls == UPDATE + ["empty_cache"] * sleeps
    assert theirs.items() <= ours.items()
    assert ours["swap/skipped_updates"] == 0


@pytest.mark.parametrize("sleeps", [True, False])
def test_weights_are_sent_before_memory_is_returned(calls, one_rank, arguments, sleeps):
    args = changed(arguments, {"vllm.enable_sleep": sleeps, "vllm.enable_prefix_caching": False})
    trainer = object.__new__(SwapPolicyTrainer)
    trainer.args = args
    trainer._sender = SimpleNamespace(send_weights=lambda: calls.append("send"))
    trainer.broadcast_to_vllm()
    assert calls == ["send"] + ["empty_cache"] * sleeps
