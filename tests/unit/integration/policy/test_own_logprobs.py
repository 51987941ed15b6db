"""An update that compares with its own log-probabilities, against one after a pass of their own."""

import math
from types import SimpleNamespace

import pytest
import torch
from openrlhf.models import PolicyLoss
from support.actors import changed
from support.passes import actor_of, micro_batch, model_of

from openrlhf_swap.config import RunConfig
from openrlhf_swap.integration.policy.actors import SwapPolicyTrainer, loss_with_own_logprobs


def read_one_by_one(actor):
    """The log-probabilities of each response alone, as a pass with other micro-batches has them."""
    ids, actions, mask, _ = micro_batch()
    actor.eval()
    with torch.no_grad():
        rows = [actor(ids[row, None], actions[row, None], mask[row, None]) for row in range(2)]
    actor.train()
    return torch.cat(rows)


def update(model, loss, packing, old=None):
    """The loss and the gradients of one update; without old log-probabilities it gets zeros."""
    model.zero_grad()
    ids, actions, mask, _ = micro_batch()
    actor = actor_of(model, packing)
    given = torch.zeros(actions.shape) if old is None else old(actor)
    log_probs = actor.train()(ids, actions, mask)
    advantages = torch.linspace(-1, 1, actions.numel()).view(actions.shape)
    value, clipped, kl, *_ = loss(log_probs, given, advantages, action_mask=actions)
    value.backward()
    gradients = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    return value.detach(), gradients, clipped, kl


@pytest.mark.parametrize("packing", [False, True])
@pytest.mark.parametrize("kind", ["ppo", "gspo"])
@pytest.mark.parametrize("family", ["qwen2", "gemma3_text"])
def test_the_update_is_that_after_a_pass(family, kind, packing):
    model = model_of(family, torch.float32)
    loss = PolicyLoss(policy_loss_type=kind)
    expected, theirs, _, _ = update(model, loss, packing, old=read_one_by_one)

    def without_a_pass(*given, **sizes):
        return loss_with_own_logprobs(loss, *given, **sizes)

    found, ours, clipped, kl = update(model, without_a_pass, packing)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert any(gradient.norm() > 1e-3 for gradient in theirs.values())
    for name, gradient in ours.items():
        error = (gradient - theirs[name]).norm()
        assert error <= 1e-5 * max(theirs[name].norm(), 1e-3), name
    assert clipped == 0  # every ratio is 1
    assert kl == 0


@pytest.mark.parametrize(
    ("reuses", "loss", "kl"),
    [
        # Ratios of exp(-1) and exp(-2) with advantages of 1, or ratios of 1.
        (False, -(math.exp(-1) + math.exp(-2)) / 2, 1.5),
        (True, -1.0, 0.0),
    ],
)
def test_the_trainer_compares_with_what_the_run_settled_on(one_rank, arguments, reuses, loss, kl):
    args = changed(arguments, {"swap_run": RunConfig(reuse_logprobs=reuses)})
    strategy = SimpleNamespace(args=args)
    trainer = SwapPolicyTrainer(strategy, None, None, None, None, vllm_engines=None)
    log_probs = torch.tensor([[-1.0, -2.0]])
    ones = torch.ones(1, 2)
    found = trainer.actor_loss_fn(log_probs, torch.zeros(1, 2), ones, action_mask=ones)
    assert found[0].item() == pytest.approx(loss)
    assert found[2].item() == pytest.approx(kl)
