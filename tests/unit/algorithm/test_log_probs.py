"""Log-probabilities in chunks against all logits at once and autograd."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_swap.algorithm.log_probs import HeadPass, LogitTransform, token_log_probs

TRANSFORMS = [LogitTransform(), LogitTransform(scale=0.125), LogitTransform(cap=3.0)]


def all_at_once(hidden, weight, bias, targets, wanted, head):
    """The head, its transform and a softmax, with autograd's own gradients."""
    logits = torch.nn.functional.linear(hidden, weight, bias).float() * head.transform.scale
    cap = head.transform.cap
    if cap is not None:
        logits = cap * torch.tanh(logits / cap)
    log_p = torch.log_softmax(logits / head.temperature, -1)
    columns = [log_p.gather(-1, targets[:, None]).squeeze(-1)]
    if head.entropy:
        columns.append(-(log_p.exp() * log_p).sum(-1))
    mask = torch.zeros(len(hidden)).index_fill(0, wanted, 1.0)
    return torch.stack(columns, -1) * mask[:, None]


def computed(function, head, dtype=torch.float32, bias=True, tokens=23):
    """Values, and gradients of a weighted sum of them; the same inputs at each call."""
    torch.manual_seed(0)
    hidden = torch.randn(tokens, 16).to(dtype).requires_grad_()
    weight = torch.randn(50, 16).to(dtype).requires_grad_()
    leaves = [hidden, weight]
    if bias:
        leaves.append(torch.randn(50).to(dtype).requires_grad_())
    targets = torch.randint(50, (tokens,))
    wanted = torch.randperm(tokens)[: tokens - 4]
    values = function(hidden, weight, leaves[2] if bias else None, targets, wanted, head)
    (values * torch.randn(values.shape)).sum().backward()
    return values.detach(), [leaf.grad for leaf in leaves]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TRANSFORMS),
    st.sampled_from([0.6, 1.0]),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_values_and_gradients_are_those_of_all_logits(transform, temperature, chunk, entropy, bias):
    head = HeadPass(transform, temperature, chunk, entropy)
    values, gradients = computed(token_log_probs, head, bias=bias)
    expected, theirs = computed(all_at_once, head, bias=bias)
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    for ours, other in zip(gradients, theirs, strict=True):
        assert (ours - other).norm() < 1e-5 * other.norm()


def test_bfloat16_gradients_are_as_good_in_many_chunks_as_in_one():
    """The gradient of the weight is off by less than 2%, and by no more than autograd's own."""

    def error_of(function, chunk):
        head = HeadPass(LogitTransform(), 0.6, chunk)
        _, gradients = computed(function, head, torch.bfloat16, tokens=2000)
        assert gradients[1].dtype == torch.bfloat16
        error = (gradients[1] - exact[1]).norm() / exact[1].norm()
        return error.item()

    _, exact = computed(all_at_once, HeadPass(LogitTransform(), 0.6, 2000), tokens=2000)
    stock = error_of(all_at_once, 2000)
    assert stock < 0.02
    for chunk in (2000, 16):
        assert error_of(token_log_probs, chunk) == pytest.approx(stock, rel=0.1)


def test_frozen_weights_get_no_gradient_and_no_wanted_token_gives_zeros():
    hidden = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(10, 8)
    targets = torch.zeros(4, dtype=torch.int64)
    head = HeadPass(LogitTransform(), 1.0, 2)
    token_log_probs(hidden, weight, None, targets, torch.tensor([2]), head).sum().backward()
    assert weight.grad is None
    assert hidden.grad[2].norm() > 0
    assert hidden.grad[[0, 1, 3]].norm() == 0
    weight.requires_grad_()
    token_log_probs(hidden, weight, None, targets, targets[:0], head).sum().backward()
    assert weight.grad.norm() == 0
