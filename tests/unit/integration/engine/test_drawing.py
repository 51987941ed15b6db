"""Tokens drawn on a CPU: with the probabilities of the logits, and by each row's own generator."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

from openrlhf_swap.integration.engine.drawing import draw_tokens
from openrlhf_swap.integration.patches import CPU_ENGINE, installed

PLAIN = SimpleNamespace(logprobs_mode="raw_logprobs")
NEVER = float("-inf")


def draws(logits, generators=None, top_k=None, top_p=None):
    return draw_tokens(PLAIN, logits.clone(), generators or {}, top_k, top_p)[0]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def test_a_token_is_drawn_as_often_as_its_probability_says():
    torch.manual_seed(0)
    probabilities = torch.tensor([0.5, 0.2, 0.15, 0.1, 0.05])
    tokens = draws(probabilities.log().expand(20_000, 5))
    shares = torch.bincount(tokens, minlength=5) / 20_000
    deviation = (probabilities * (1 - probabilities) / 20_000).sqrt()
    assert ((shares - probabilities).abs() < 4 * deviation).all()


@given(st.lists(st.sampled_from([NEVER, -3.0, 0.0, 2.5, 20.0]), min_size=1), st.integers(0, 2**32))
def test_a_seeded_row_is_drawn_by_the_first_sum_that_reaches_its_number(row, seed):
    if set(row) == {NEVER}:
        row = [*row, 0.0]
    weights = torch.tensor(row).double().exp()
    reached = (1 - torch.rand(1, generator=seeded(seed)).item()) * weights.sum().item()
    token = draws(torch.tensor([row]), {0: seeded(seed)}).item()
    before, after = weights[:token].sum().item(), weights[: token + 1].sum().item()
    slack = 1e-6 * weights.sum().item()
    assert weights[token] > 0
    assert before - slack < reached <= after + slack


def test_a_seeded_row_does_not_depend_on_the_others():
    logits = torch.randn(4, 1000)
    alone = draws(logits[2:3], {0: seeded(5)})
    assert draws(logits, {0: seeded(1), 2: seeded(5)})[2] == alone


@pytest.mark.parametrize(
    ("top_k", "top_p", "possible"), [(2, None, {1, 3}), (None, 0.6, {3}), (3, 0.8, {1, 3})]
)
def test_only_tokens_within_the_limits_are_drawn(top_k, top_p, possible):
    rows = 300
    logits = torch.tensor([0.1, 0.25, 0.05, 0.6]).log().expand(rows, 4)
    top_k = None if top_k is None else torch.full((rows,), top_k)
    top_p = None if top_p is None else torch.full((rows,), top_p)
    assert set(draws(logits, None, top_k, top_p).tolist()) == possible


def test_a_policy_that_is_not_finite_draws_tokens_of_the_vocabulary():
    nan = float("nan")
    logits = torch.tensor([[nan, nan, nan], [0.0, nan, 1.0], [0.0, float("inf"), 1.0]])
    for token in draws(logits).tolist():
        assert token in range(3)


def test_log_probabilities_after_the_limits_are_those_of_vllms_sampler():
    logits, limits = torch.randn(3, 50), torch.full((3,), 7)
    with installed(CPU_ENGINE):
        ours = TopKTopPSampler("processed_logprobs")(logits.clone(), {}, limits, None)[1]
    stock = TopKTopPSampler("processed_logprobs")(logits.clone(), {}, limits, None)[1]
    assert torch.equal(ours, stock)


def test_the_engines_sampler_draws_in_our_way():
    with installed(CPU_ENGINE):
        sampler = TopKTopPSampler("raw_logprobs")
        logits = torch.randn(2, 9)
        tokens, log_probs = sampler(logits, {0: seeded(3), 1: seeded(4)}, None, None)
    assert torch.equal(tokens, draws(logits, {0: seeded(3), 1: seeded(4)}))
    assert log_probs is None
