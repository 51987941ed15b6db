"""A teacher: the reference model reads responses behind its own prompt, for the KL loss."""

import copy
from types import SimpleNamespace

import pytest
import ray
import torch
from openrlhf.models import Actor
from openrlhf.models.utils import compute_approx_kl
from support.actors import changed, make_config
from support.paths import POLICY
from transformers import AutoModelForCausalLM

from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.objectives.peers.crisp import CRISP
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rollouts.rollout import Rollout

TEMPERATURE = 0.7
RESPONSES = ("7</think>\\boxed{7}", "3 plus 4 is 7.\n</think>7", "7", "so 12", "1 + 2 + 3 is 6")


class Here:
    """An actor group whose only actor runs in this process."""

    def __init__(self, model):
        self.actor = Actor(model, temperature=TEMPERATURE)
        self.actor.packing_samples = False

    @torch.no_grad()
    def async_run_method_batch(self, method_name, sequences, action_mask, attention_mask):
        assert method_name == "forward"
        batches = zip(sequences, action_mask, attention_mask, strict=True)
        return [[self.actor(*batch) for batch in batches]]

    def async_run_method(self, method_name):
        return []


@pytest.fixture(scope="module")
def models():
    policy = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    reference = copy.deepcopy(policy)
    with torch.no_grad():
        for weight in reference.parameters():
            weight.mul_(1.05)
    return policy, reference


@torch.no_grad()
def slow_log_probs(model, prompt_ids, response_ids):
    """One forward for one response, without padding."""
    row = torch.tensor([[*prompt_ids, *response_ids]])
    logits = model(row).logits[0, len(prompt_ids) - 1 : -1] / TEMPERATURE
    targets = torch.tensor(response_ids).unsqueeze(-1)
    return logits.log_softmax(-1).gather(-1, targets).squeeze(-1)


@pytest.mark.parametrize("has_teacher", [True, False])
def test_each_model_reads_the_responses_behind_its_prompt(
    arguments, tokenizer, monkeypatch, models, has_teacher
):
    monkeypatch.setattr(ray, "get", lambda value, timeout=None: value)
    monkeypatch.setattr(ray, "put", lambda value: value)
    objective = build(make_config(objective="crisp"))
    policy, reference = models
    flags = {**objective.flags, "swap": objective.config}
    strategy = SimpleNamespace(args=changed(arguments, flags))
    driver = Policy(strategy, tokenizer, Here(policy), Here(reference), [])
    rollouts = []
    for number, text in enumerate(RESPONSES):
        prompt_ids = tokenizer(f"{number} + 4?")["input_ids"]
        teacher_ids = tokenizer("Be brief. " * number + f"{number} + 4?")["input_ids"]
        rollout = Rollout(
            prompt="p",
            answer="7",
            response_ids=tokenizer(text)["input_ids"],
            prompt_ids=prompt_ids,
            reward=0.0,
            record={"label": "", "scores": 0.0, "rollout_log_probs": None},
            teacher_prompt_ids=teacher_ids if has_teacher else (),
        )
        rollouts.append(rollout)

    forward = driver.forward(rollouts, objective)
    seen = []
    for micro_batch in forward.micro_batches:
        for row, index in enumerate(micro_batch.index):
            rollout = rollouts[index]
            read_ids = rollout.teacher_prompt_ids or rollout.prompt_ids
            actions = micro_batch.action_mask[row].bool()
            found = micro_batch.base_action_log_probs[row][actions]
            expected = slow_log_probs(reference, read_ids, rollout.response_ids)
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
            own = slow_log_probs(policy, rollout.prompt_ids, rollout.response_ids)
            found = micro_batch.action_log_probs[row][actions]
            torch.testing.assert_close(found, own, rtol=0, atol=1e-4)
            seen.append(index)
    assert sorted(seen) == list(range(len(RESPONSES)))


def test_the_expected_gradient_is_that_of_the_authors_loss():
    drawn = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 5, generator=drawn, dtype=torch.float64).requires_grad_()
    of_teacher = torch.randn(3, 5, generator=drawn, dtype=torch.float64).log_softmax(-1)

    # Their `_compute_reverse_kl_loss`: over the whole vocabulary, the mean of the tokens.
    log_probs = logits.log_softmax(-1)
    loss = (log_probs.exp() * (log_probs - of_teacher)).sum(-1).mean()
    (expected,) = torch.autograd.grad(loss, logits, retain_graph=True)

    # OpenRLHF's loss at each token that could be drawn, by its probability.
    kl = compute_approx_kl(
        log_probs,
        of_teacher,
        log_probs.detach(),
        CRISP.flags["algo.kl.estimator"],
        CRISP.flags["algo.kl.unbiased_gradient"],
    )
    weighted = (log_probs.exp().detach() * kl).sum(-1).mean()
    (found,) = torch.autograd.grad(weighted, logits)
    torch.testing.assert_close(weighted, loss, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
