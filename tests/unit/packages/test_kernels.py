"""Products in bfloat16 on the CPU, against float64."""

import re

import pytest
import torch
from torch.nn.functional import linear, scaled_dot_product_attention

from openrlhf_swap.packages import kernels
from openrlhf_swap.packages.kernels import PRODUCTS, speed_up_products, widened_products

SHAPES = {"x": (3, 40, 64), "weight": (48, 64), "bias": (48,)}
SHAPES |= dict.fromkeys(("query", "key", "value"), (2, 4, 30, 16))


def sources():
    """The line of torch's registry that names the file of each operator's kernel for the CPU."""
    dumps = [torch._C._dispatch_dump(f"aten::{name}") for name in PRODUCTS]
    return [re.search(r"(?m)^CPU: .*", dump)[0] for dump in dumps]


@pytest.fixture
def ours():
    """Our kernels in force, whatever this processor needs."""
    library = widened_products()
    yield
    library._destroy()


def tensors(dtype):
    """Random numbers of bfloat16, which every other dtype holds exactly."""
    torch.manual_seed(0)
    rounded = {name: torch.randn(shape).bfloat16() for name, shape in SHAPES.items()}
    return {name: value.to(dtype).requires_grad_() for name, value in rounded.items()}


def results(dtype):
    """Products of every kind, and the gradients of the tensors that they are made of."""
    given = tensors(dtype)
    x, weight, bias, query, key, value = given.values()
    heads, keys, values = (part.flatten(0, 1) for part in (query, key, value))
    added = x[:, :30, :30].sum(0).expand(8, 30, 30)
    outputs = {
        "mm": linear(x, weight),
        "addmm": linear(x[0], weight, bias),
        "bmm": heads @ keys.transpose(1, 2),
        "baddbmm": torch.baddbmm(values, added, keys),
        "attention": scaled_dot_product_attention(query, key, value, is_causal=True),
    }
    found = dict(outputs)
    for kind, output in outputs.items():
        loss = output.square().sum()
        parts = torch.autograd.grad(loss, list(given.values()), allow_unused=True)
        for name, part in zip(given, parts, strict=True):
            if part is not None:
                found[f"gradient of {name} by {kind}"] = part
    return found


def test_results_and_gradients_are_those_of_float64_within_bfloat16(ours):
    """Products are off by half a unit in the last place.

    Where a sum cancels, they are off by float32's error.
    """
    exact = results(torch.float64)
    found = results(torch.bfloat16)
    assert found.keys() == exact.keys()
    assert len(found) == 18
    for kind in ("mm", "addmm", "bmm"):
        torch.testing.assert_close(found[kind].double(), exact[kind], rtol=2**-8, atol=1e-5)
    for name, value in found.items():
        assert value.dtype is torch.bfloat16
        error = value.double() - exact[name]
        assert error.norm() < 0.02 * exact[name].norm(), name


def test_kernels_are_replaced_where_the_processor_needs_it_and_come_back(monkeypatch):
    before = sources()
    monkeypatch.setattr(kernels, "has_fast_products", lambda: True)
    assert speed_up_products.__wrapped__() is None
    monkeypatch.setattr(kernels, "has_fast_products", lambda: False)
    library = speed_up_products.__wrapped__()
    assert all("kernels.py" in source for source in sources())
    library._destroy()
    assert sources() == before
