"""Which of torch's kernels a process computes with.

It takes no cuDNN attention and no emulated products, and one attention kernel for many sequences.
Some processors have no instructions for matrix products in bfloat16. There these products take
several times as long as in float32 (studies/records/measurements.md), and a run on a CPU computes
in bfloat16, as a run on GPUs does.
"""

import platform
import warnings
from collections.abc import Callable
from functools import cache, partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad

WIDEST = 256  # heads that FlashAttention takes have at most this many dimensions
ALIGNED = 8  # and a multiple of so many
AMPERE = (8, 0)  # the oldest GPUs that FlashAttention takes, by their compute capability
# Operations whose results an update may keep: products, and attention by torch's fused kernels.
PRODUCTS_AND_ATTENTION = [
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
    torch.ops.aten._scaled_dot_product_cudnn_attention.default,
    torch.ops.torch_attn._varlen_attn.default,
]
# The attention's forward pass computes in float32 by itself.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_scaled_dot_product_flash_attention_for_cpu_backward")


def leave_out_cudnn() -> None:
    """Keep SDPA from cuDNN, which builds a plan for each length of a response; so does vLLM."""
    torch.backends.cuda.enable_cudnn_sdp(False)


class Bounds(NamedTuple):
    """Where sequences that lie end to end start, and where the last one ends."""

    places: list[int]
    on_device: Tensor  # (sequences + 1,) int32, the same

    @classmethod
    def at(cls, places: list[int], device: torch.device) -> "Bounds":
        """The bounds at these places, sent to a device."""
        on_host = torch.tensor(places, dtype=torch.int32)
        return cls(places, on_host.to(device, non_blocking=True))

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(stop - start for start, stop in pairwise(self.places))


def takes_sequences(query: Tensor, value: Tensor) -> bool:
    """Whether `attend_sequences` serves heads of these dimensions and type on their device."""
    is_half = query.dtype in (torch.bfloat16, torch.float16)
    if not query.is_cuda or not is_half or _width(query, value) > WIDEST:
        return False
    return torch.cuda.get_device_capability(query.device) >= AMPERE


def attend_sequences(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Bounds,
    keys: Bounds,
    scaling: float | None,
    window: int | None = None,
) -> Tensor:
    """Attend sequences by themselves, in one call of torch's FlashAttention for varying lengths.

    Takes (n, H, D) queries, (m, H_kv, D) keys and (m, H_kv, D_v) values, with the bounds of n and
    of m. The queries of a sequence are the last of its tokens, and attention is causal; a `window`
    counts the tokens that a token sees, itself included. Returns (n, H, D_v).
    """
    # Zeros, which change no score, fill heads up to a width that the kernel takes.
    width = _width(query, value)
    width += -width % ALIGNED
    output = varlen_attn(
        _widened(query, width),
        _widened(key, width),
        _widened(value, width),
        queries.on_device,
        keys.on_device,
        queries.longest,
        keys.longest,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(output, Tensor)  # a tuple where more was asked for
    return output[..., : value.shape[-1]]


def _width(query: Tensor, value: Tensor) -> int:
    return max(query.shape[-1], value.shape[-1])


def _widened(part: Tensor, width: int) -> Tensor:
    missing = width - part.shape[-1]
    return pad(part, (0, missing)) if missing else part  # it would copy for nothing


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
    """The result of torch's kernel `stock`, computed in float32 and rounded to bfloat16."""
    if arguments[0].dtype is not torch.bfloat16:
        return stock(keys, *arguments, **options)
    wide = [_as_float32(value) for value in arguments]
    result = stock(keys, *wide, **options)
    if isinstance(result, Tensor):
        return result.bfloat16()
    return tuple(value.bfloat16() for value in result)


def _as_float32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) else value
