"""What the driver makes of the policy's answers, and how it sends weights."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import ray
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from openrlhf.models import PolicyLoss
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from support.actors import GROUP_SIZE, GROUPS, changed, learn, make_config
from support.conformance import NoPolicy
from support.loops import run_args
from support.objectives import READER, rollout

from openrlhf_swap.config import RunConfig
from openrlhf_swap.errors import SwapError
from openrlhf_swap.integration.driver.experience import SwapExperienceMaker
from openrlhf_swap.integration.driver.policy import Policy
from openrlhf_swap.objectives.base import Objective

LONGEST = 8  # tokens of the longest response below


# A penalty on every token: a sum that is rounded in another way would differ in its last bits.
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 3), actions=st.integers(1, 300))
def test_returns_are_the_stock_ones_bit_by_bit(seed, rows, actions):
    drawn = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, actions, generator=drawn)
    mask = torch.randint(2, (rows, actions), generator=drawn)
    stock = RemoteExperienceMaker.get_cumulative_returns(None, rewards, mask, 1.0)
    ours = SwapExperienceMaker.get_cumulative_returns(None, rewards, mask, 1.0)
    assert torch.equal(ours, stock)


@pytest.mark.parametrize(
    ("shares", "sleeps", "count"),
    # Calls: the pass; then a wait, the release of memory, and a wait.
    [(True, True, 4), (True, False, 1), (False, True, 1)],
)
def test_models_that_take_turns_on_a_gpu_do_what_the_stock_ones_do(
    monkeypatch, arguments, shares, sleeps, count
):
    """Where nothing sleeps, they do what the stock ones do on GPUs of their own."""
    calls = []
    group = SimpleNamespace(
        async_run_method_batch=lambda **given: calls.append(given) or ["answers"],
        async_run_method=lambda **given: calls.append(given) or ["done"],
    )
    monkeypatch.setattr(ray, "get", lambda refs, timeout=None: calls.append(refs))
    maker = object.__new__(SwapExperienceMaker)
    run = RunConfig(generation_timeout=1.0)
    maker.args = changed(arguments, {"swap_run": run, "vllm.enable_sleep": sleeps})
    maker.actor_model_group = group
    maker.requests = {}
    refs = maker._dispatch_forward(group, shares, sequences=[1])
    ours = list(calls)
    calls.clear()
    takes_turns = shares and sleeps
    stock = RemoteExperienceMaker._dispatch_forward(maker, group, takes_turns, sequences=[1])
    assert refs == stock
    assert ours == calls
    assert len(calls) == count


@pytest.fixture
def experiences_of(arguments, tokenizer, monkeypatch):
    """A function that gives the experiences of a batch on which an objective put advantages."""
    monkeypatch.setattr(ray, "get", lambda value, timeout=None: value)
    monkeypatch.setattr(ray, "put", lambda value: value)

    def make(objective, closing=(), group=None, **run):
        record = {"label": "4", "scores": 0.0, "rollout_log_probs": None}
        rollouts = []
        for row in range(GROUPS * GROUP_SIZE):
            made = rollout("", LONGEST - row % 3, row % 2, part=0.0)
            rollouts.append(replace(made, record=record, closing=closing))
        args = run_args(arguments, ".", swap=objective.config, run=run)
        driver = Policy(SimpleNamespace(args=args), tokenizer, group or NoPolicy(), None, [])
        return learn(driver, objective, READER, rollouts).experiences

    return make


def objective_with(**methods):
    return type("Mine", (Objective,), methods)(make_config(objective="my_module:Mine"))


def test_without_a_pass_the_policy_is_not_asked_and_the_advantages_stay(experiences_of):
    class Unasked:
        """Stands in for the policy's actor group, which would have no method at all."""

    class SeesNoLogprobs(Objective):
        def rewards(self, batch):
            assert all(rollout.logprobs is None for group in batch.groups for rollout in group)
            return super().rewards(batch)

    objective = SeesNoLogprobs(make_config(objective="grpo"))
    without = experiences_of(objective, group=Unasked(), reuse_logprobs=True)
    plain = experiences_of(Objective(make_config(objective="grpo")))
    for ours, theirs in zip(without, plain, strict=True):
        assert torch.equal(ours.advantages, theirs.advantages)
        assert ours.action_log_probs.shape == ours.action_mask.shape
        assert ours.info.keys() == theirs.info.keys()


def nan_at(values, *place):
    values = values.clone()
    values[place] = torch.nan
    return values


def zeros(*shape):
    return torch.zeros(shape, dtype=torch.float64)


TOKENS = (GROUPS, GROUP_SIZE, LONGEST)
WRONG = [
    ("rewards", lambda batch: zeros(4, 5), "(4, 5); expected a tensor of shape (4, 4), (groups, "),
    ("rewards", lambda batch: 1e308 + 0 * batch.rewards, "1e+308 at (0, 0)"),
    ("rewards", lambda batch: batch.rewards.tolist(), "list; expected a tensor of shape (4, 4)"),
    ("token_advantages", lambda batch: zeros(4, 4, 7), "(4, 4, 7); expected a tensor of shape (4,"),
    ("token_advantages", lambda batch: nan_at(zeros(*TOKENS), 1, 1, 5), "nan at (1, 1, 5)"),
]


@pytest.mark.parametrize(("method", "values", "message"), WRONG)
def test_an_objective_of_ones_own_that_errs_is_named(experiences_of, method, values, message):
    with pytest.raises(SwapError) as error:
        experiences_of(objective_with(**{method: lambda self, batch: values(batch)}))
    start = f"--swap.objective is my_module:Mine, whose `{method}` returned {message}"
    assert str(error.value).startswith(start)
    assert str(error.value).endswith(f"fix Mine.{method}")


def test_what_stands_behind_a_response_reaches_no_update(experiences_of):
    class Behind(Objective):
        def token_advantages(self, batch):
            return nan_at(zeros(*TOKENS), 0, 1, 7)  # this response has 7 tokens

    config = make_config(objective="my_module:Behind")
    plain = experiences_of(Objective(config))
    for ours, theirs in zip(experiences_of(Behind(config)), plain, strict=True):
        assert torch.equal(ours.advantages, theirs.advantages)


def test_what_closed_a_thought_at_its_budget_changes_no_gradient(experiences_of):
    """The advantage of a token is its place here; the gradient is compared with that by hand."""

    class ByPlace(Objective):
        def token_advantages(self, batch):
            return torch.arange(LONGEST).double().expand(TOKENS)

    closing = (2, 3)
    objective = ByPlace(make_config(objective="my_module:ByPlace"))
    outcomes = experiences_of(Objective(make_config(objective="grpo")))
    rows = zip(experiences_of(objective, closing), outcomes, strict=True)
    for experience, outcome in rows:
        logits = torch.randn(*experience.action_mask.shape, 5, requires_grad=True)
        chosen = torch.randint(5, experience.action_mask.shape)
        log_probs = logits.log_softmax(-1).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
        loss = PolicyLoss()(
            log_probs, log_probs.detach(), experience.advantages, experience.action_mask
        )
        loss[0].backward()
        expected = torch.zeros_like(logits)
        probabilities = logits.detach().softmax(-1)
        for row, index in enumerate(experience.index):
            start = int(outcome.action_mask[row].nonzero()[0])
            length = LONGEST - index % 3
            for place in range(length):
                if place not in closing:
                    action = start + place
                    advantage = outcome.advantages[row, action] + place
                    change = probabilities[row, action].clone()
                    change[chosen[row, action]] -= 1
                    expected[row, action] = advantage * change
        trained = sum(LONGEST - index % 3 - len(closing) for index in experience.index)
        torch.testing.assert_close(logits.grad, (expected / trained).to(logits.grad.dtype))
