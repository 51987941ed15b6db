"""Log-probabilities in chunks against all logits at once and autograd."""

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


def both(head, dtype=torch.float32, bias=True, tokens=23):
    """Values and gradients from both implementations, with the same weights on the values."""
    results = []
    for function in (token_log_probs, all_at_once):
        torch.manual_seed(0)
        hidden = torch.randn(tokens, 16)
        weight = torch.randn(50, 16)
        leaves = [hidden.to(dtype).requires_grad_(), weight.to(dtype).requires_grad_()]
        if bias:
            leaves.append(torch.randn(50).to(dtype).requires_grad_())
        targets = torch.randint(50, (tokens,))
        wanted = torch.randperm(tokens)[: tokens - 4]
        values = function(*leaves[:2], leaves[2] if bias else None, targets, wanted, head)
        (values * torch.randn(values.shape)).sum().backward()
        results.append((values.detach(), [leaf.grad for leaf in leaves]))
    return results


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(TRANSFORMS),
    st.sampled_from([0.6, 1.0]),
    st.integers(1, 30),
    st.booleans(),
    st.booleans(),
)
def test_values_and_gradients_are_those_of_all_logits(transform, temperature, chunk, entropy, bias):
    (values, gradients), (expected, theirs) = both(
        HeadPass(transform, temperature, chunk, entropy), bias=bias
    )
    assert values.dtype == torch.float32
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-5)
    for ours, other in zip(gradients, theirs, strict=True):
        assert (ours - other).norm() < 1e-5 * other.norm()


def test_bfloat16_gradients_are_as_good_in_many_chunks_as_in_one():
    (_, exact), _ = both(HeadPass(LogitTransform(), 0.6, 2000), tokens=2000)
    errors = []
    for chunk in (2000, 16):
        (values, gradients), (_, stock) = both(
            HeadPass(LogitTransform(), 0.6, chunk), torch.bfloat16, tokens=2000
        )
        assert values.dtype == torch.float32
        assert gradients[1].dtype == torch.bfloat16
        errors.append((gradients[1] - exact[1]).norm() / exact[1].norm())
        errors.append((stock[1] - exact[1]).norm() / exact[1].norm())
    assert max(errors) < 1.1 * min(errors) < 0.02


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
