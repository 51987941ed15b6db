"""Products in bfloat16 on the CPU, against float64."""

import re

import pytest
import torch
from support.paths import POLICY
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap.packages import kernels
from openrlhf_swap.packages.kernels import (
    PRODUCTS,
    has_fast_products,
    speed_up_products,
    widened_products,
)
from openrlhf_swap.scoring.scorer import Scorer


def cpu_kernel(name):
    """The line of torch's registry that tells which file an operator's kernel for the CPU comes
    from.
    """
    return re.search(r"(?m)^CPU: .*", torch._C._dispatch_dump(f"aten::{name}"))[0]


NAMES = ("x", "weight", "bias", "query", "key", "value")


@pytest.fixture
def ours():
    """Our kernels in force, whatever this processor needs."""
    library = widened_products()
    yield
    library._destroy()


def tensors(dtype):
    torch.manual_seed(0)
    shapes = {"x": (3, 40, 64), "weight": (48, 64), "bias": (48,)} | dict.fromkeys(
        NAMES[3:], (2, 4, 30, 16)
    )
    values = {
        name: torch.randn(shape).bfloat16() for name, shape in shapes.items()
    }  # rounded, then exact in `dtype`
    return {name: value.to(dtype).requires_grad_() for name, value in values.items()}


def results(dtype):
    """Products of every kind, and the gradients of the tensors that they are made of."""
    given = tensors(dtype)
    x, weight, bias, query, key, value = given.values()
    outputs = {
        "mm": linear(x, weight),
        "addmm": linear(x[0], weight, bias),
        "bmm": query.flatten(0, 1) @ key.flatten(0, 1).transpose(1, 2),
        "baddbmm": torch.baddbmm(
            value.flatten(0, 1), x[:, :30, :30].sum(0).expand(8, 30, 30), key.flatten(0, 1)
        ),
        "attention": scaled_dot_product_attention(query, key, value, is_causal=True),
    }
    gradients = {}
    for kind, output in outputs.items():
        of = torch.autograd.grad(output.square().sum(), list(given.values()), allow_unused=True)
        gradients |= {
            f"gradient of {name} by {kind}": value for name, value in zip(given, of, strict=True)
        }
    return outputs | {name: value for name, value in gradients.items() if value is not None}


def test_a_product_is_that_of_float64_rounded_to_bfloat16(ours):
    """Off by half a unit in the last place, at most 2^-8 of the value, or by float32's error where
    a sum cancels.
    """
    x, weight, bias, query, key, _ = tensors(torch.float64).values()
    rounded = {name: value.detach().bfloat16() for name, value in tensors(torch.bfloat16).items()}
    for found, exact in [
        (linear(rounded["x"], rounded["weight"]), linear(x, weight)),
        (linear(rounded["x"][0], rounded["weight"], rounded["bias"]), linear(x[0], weight, bias)),
        (rounded["query"] @ rounded["key"].transpose(2, 3), query @ key.transpose(2, 3)),
    ]:
        assert found.dtype is torch.bfloat16
        torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=1e-5)


def test_results_and_gradients_are_within_bfloat16_of_float64(ours):
    exact, found = results(torch.float64), results(torch.bfloat16)
    assert found.keys() == exact.keys() and len(found) == 18
    for name, value in found.items():
        assert value.dtype is torch.bfloat16
        error = (value.double() - exact[name]).norm() / exact[name].norm()
        assert error < 0.02, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_other_numbers_are_left_to_torch(dtype):
    before = results(dtype)
    library = widened_products()
    after = results(dtype)
    library._destroy()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_torchs_own_kernels_come_back_with_the_end_of_the_library():
    before = [cpu_kernel(name) for name in PRODUCTS]
    library = widened_products()
    assert all("kernels.py" in cpu_kernel(name) for name in PRODUCTS)
    library._destroy()
    assert [cpu_kernel(name) for name in PRODUCTS] == before


def test_kernels_are_replaced_where_the_processor_needs_it_only(monkeypatch):
    monkeypatch.setattr(kernels, "has_fast_products", lambda: True)
    assert speed_up_products.__wrapped__() is None
    monkeypatch.setattr(kernels, "has_fast_products", lambda: False)
    library = speed_up_products.__wrapped__()
    assert all("kernels.py" in cpu_kernel(name) for name in PRODUCTS)
    library._destroy()


@pytest.mark.parametrize(
    ("machine", "instructions", "onednn", "fast"),
    [
        (
            "x86_64",
            (False, False),
            True,
            False,
        ),  # AVX-512 alone: oneDNN takes the products and emulates them
        ("x86_64", (True, False), True, True),
        ("AMD64", (False, True), True, True),
        ("aarch64", (False, False), True, True),
        ("aarch64", (False, False), False, False),
    ],
)
def test_the_processor_is_asked_for_its_instructions(
    monkeypatch, machine, instructions, onednn, fast
):
    monkeypatch.setattr(kernels.platform, "machine", lambda: machine)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: instructions[0])
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: instructions[1])
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: onednn)
    assert has_fast_products() is fast


def test_an_older_torch_keeps_its_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "has_fast_products", lambda: False)
    monkeypatch.delattr(torch.library, "get_kernel")
    assert speed_up_products.__wrapped__() is None


def test_a_scorer_multiplies_as_a_run_does():
    Scorer(
        AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.bfloat16),
        AutoTokenizer.from_pretrained(POLICY),
    )
    assert all(("kernels.py" in cpu_kernel(name)) == (not has_fast_products()) for name in PRODUCTS)
