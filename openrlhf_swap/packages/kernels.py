"""Which of torch's kernels a process computes with: no cuDNN attention, and no emulated products.

Some processors have no instructions for matrix products in bfloat16. There these products take
several times as long as in float32 (studies/records/measurements.md), and a run on a CPU computes
in bfloat16, as a run on GPUs does.
"""

import platform
import warnings
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

# The attention's forward pass computes in float32 by itself.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu_backward")


def leave_out_cudnn() -> None:
    """Keep SDPA from cuDNN, which builds a plan for each length of a response; so does vLLM."""
    torch.backends.cuda.enable_cudnn_sdp(False)


def has_fast_products() -> bool:
    """Whether the processor has instructions for matrix products in bfloat16.

    The products are not timed: every process decides for itself, and all of a run must agree.
    """
    if platform.machine() in ("x86_64", "AMD64"):  # with AVX-512 alone oneDNN emulates them
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return bool(torch._C._has_mkldnn and torch.ops.mkldnn._is_mkldnn_bf16_supported())


@cache
def speed_up_products() -> torch.library.Library | None:
    """Compute products of bfloat16 tensors on the CPU in float32, where that is faster.

    A product is rounded to bfloat16 once, as by oneDNN: only the order of summation differs.
    Returns what keeps the kernels in force; None where torch's own kernels stay, which an older
    torch cannot replace.
    """
    if has_fast_products() or not hasattr(torch.library, "get_kernel"):
        return None
    return widened_products()


def widened_products() -> torch.library.Library:
    """Replace torch's kernels for PRODUCTS until the returned library is destroyed."""
    library = torch.library.Library("aten", "IMPL", "CPU")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Warning only once for all operators")
        for name in PRODUCTS:
            stock = torch.library.get_kernel(f"aten::{name}", "CPU")
            kernel = partial(_in_float32, stock.call_boxed)
            library.impl(name, kernel, with_keyset=True)  # type: ignore[no-untyped-call]
    return library


def _in_float32(
    stock: Callable[..., Any], keys: torch.DispatchKeySet, *arguments: Any, **options: Any
) -> Any:
    if arguments[0].dtype is not torch.bfloat16:
        return stock(keys, *arguments, **options)
    wide = [_as_float32(value) for value in arguments]
    result = stock(keys, *wide, **options)
    if isinstance(result, Tensor):
        return result.bfloat16()
    return tuple(value.bfloat16() for value in result)


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value
