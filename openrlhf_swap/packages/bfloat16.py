"""Matrix products in bfloat16 on a processor that has no instructions for them.

torch leaves these products to oneDNN, which takes them where the processor has AVX-512 or, on Arm, BF16. Elsewhere, as
on desktops with AVX2 only, torch's own loop takes many times as long as the same product in float32: a run on CPU,
which computes in bfloat16 as on GPUs, would be several times slower (docs/measurements.md).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

# The attention's forward pass computes in float32 by itself.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu_backward")


def has_fast_products() -> bool:
    """Whether torch multiplies matrices in bfloat16 with the processor's own instructions."""
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def speed_up_products() -> torch.library.Library | None:
    """Have this process compute products of bfloat16 tensors on the CPU in float32, where that is faster. Idempotent.

    They are rounded to bfloat16 once, as oneDNN does it: only the order of summation differs.

    Returns:
        What keeps the kernels in force; None where torch's own stay: on a processor that needs no others, and in an
        older torch, which `Scorer` takes but which cannot replace them.
    """
    if has_fast_products() or not hasattr(torch.library, "get_kernel"):
        return None
    return widened_products()


def widened_products() -> torch.library.Library:
    """Put kernels for PRODUCTS in the place of torch's, until what is returned is destroyed."""
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")  # that they had a kernel before
        for name in PRODUCTS:
            stock = torch.library.get_kernel(f"aten::{name}", "CPU")
            kernel = partial(_in_float32, stock.call_boxed)
            library.impl(name, kernel, with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _in_float32(stock: Callable[..., Any], keys: torch.DispatchKeySet, *arguments: Any, **options: Any) -> Any:
    """What `stock` computes; for bfloat16, from float32 copies."""
    if arguments[0].dtype is not torch.bfloat16:
        return stock(keys, *arguments, **options)
    wide = (value.float() if isinstance(value, Tensor) else value for value in arguments)
    result = stock(keys, *wide, **options)
    return result.bfloat16() if isinstance(result, Tensor) else tuple(value.bfloat16() for value in result)
