"""SDPA for rows that hold several responses, without flash-attn and without masks of length x length.

It is registered with transformers as an attention implementation. Where OpenRLHF packs a micro-batch into one row,
position ids start again with each response: there layers get the bounds of the responses in the place of a mask. GPUs
attend all of them in one call of torch's own FlashAttention kernels; elsewhere each response has a call of SDPA. Other
rows are attended as by transformers' `sdpa`.

Shapes: T tokens of a row, H heads, of which H_kv for keys.
"""

import warnings
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "swap_rows"
WIDEST, ALIGNED = 256, 8  # heads that FlashAttention takes
TOLERANCE = 0.02  # of the norms of outputs and gradients in bfloat16


class Bounds(NamedTuple):
    """Where the responses of a row start, and where the last one ends."""

    places: list[int]
    on_device: Tensor  # (responses + 1,) int32, the same

    @property
    def longest(self) -> int:
        return max(stop - start for start, stop in pairwise(self.places))


def register() -> None:
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, bounds_or_mask)


def bounds_or_mask(
    batch_size: int, q_length: int, kv_length: int, mask_function: Callable[..., Tensor], **options: Any
) -> Bounds | Tensor | None:
    """What layers get as their mask: a row's bounds or, for a batch, padding or a cache, the mask of `sdpa`.

    `q_length` is T, `kv_length` also counts what a cache holds; `mask_function` says whether the token at one index
    sees that at another, with `packed` responses kept apart.
    """
    one_row = batch_size == 1 and q_length == kv_length and options.get("attention_mask") is None
    if not one_row or options.get("use_vmap"):
        return sdpa_mask(batch_size, q_length, kv_length, mask_function=mask_function, **options)
    token = torch.arange(1, q_length, device=options["device"])
    first = token.new_zeros(1)
    starts = (~mask_function(first, first, token, token - 1)).cpu().nonzero().flatten() + 1
    places = [0, *starts.tolist(), q_length]
    return Bounds(places, torch.tensor(places, dtype=torch.int32).to(token.device, non_blocking=True))


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Bounds | Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend each response of a row by itself; returns (1, T, H, D_v), and no weights.

    `query` is (1, H, T, D), `key` (1, H_kv, T, D), `value` (1, H_kv, T, D_v); the mask comes from `bounds_or_mask`;
    `sliding_window` counts the tokens that a token sees, itself included. Raises ValueError for sinks, `s_aux`.
    """
    if s_aux is not None:
        raise ValueError("attention sinks need other kernels")
    if not isinstance(attention_mask, Bounds):
        more = {"scaling": scaling, "dropout": dropout, **options}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    window = None if sliding_window is None or sliding_window >= attention_mask.longest else sliding_window
    if not dropout and takes_kernels(query, value):
        return attend_by_kernels(query, key, value, attention_mask, scaling, window), None
    parts = []
    for start, stop in pairwise(attention_mask.places):
        mask = None
        if window is not None and window < stop - start:
            token = torch.arange(stop - start, device=query.device)
            behind = token[:, None] - token
            mask = ((behind >= 0) & (behind < window))[None, None]
        q, k, v = (part[:, :, start:stop] for part in (query, key, value))
        parts.append(sdpa_attention_forward(module, q, k, v, mask, scaling=scaling, dropout=dropout, **options)[0])
    return torch.cat(parts, dim=1), None


def takes_kernels(query: Tensor, value: Tensor) -> bool:
    """Whether torch's kernels for rows of several responses serve these heads on this device."""
    fits = max(query.shape[-1], value.shape[-1]) <= WIDEST and query.dtype in (torch.bfloat16, torch.float16)
    return query.is_cuda and fits and kernels_work(query.device)


def attend_by_kernels(
    query: Tensor, key: Tensor, value: Tensor, bounds: Bounds, scaling: float | None, window: int | None
) -> Tensor:
    """As `attend`, in one call; zeros, which change no score, fill heads up to a width that kernels take."""
    width = -(-max(query.shape[-1], value.shape[-1]) // ALIGNED) * ALIGNED
    q, k, v = (_widened(part[0].transpose(0, 1).to(value.dtype), width) for part in (query, key, value))
    starts, longest = bounds.on_device, bounds.longest
    output = varlen_attn(
        *(q, k, v, starts, starts, longest, longest),
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
    )
    assert isinstance(output, Tensor)  # a tuple where more was asked for
    return output[None, ..., : value.shape[-1]]


def _widened(part: Tensor, width: int) -> Tensor:
    missing = width - part.shape[-1]
    return pad(part, (0, missing)) if missing else part  # it would copy for nothing


@cache
def kernels_work(device: torch.device) -> bool:
    """Try the kernels, forward and backward, beside SDPA: a GPU may be too old for them, or a build without them."""
    generator = torch.Generator(device).manual_seed(0)
    places = [0, 5, 40]
    bounds = Bounds(places, torch.tensor(places, dtype=torch.int32, device=device))
    query, key, value = (
        torch.randn(1, heads, 40, 64, generator=generator, device=device).bfloat16().requires_grad_()
        for heads in (4, 2, 2)
    )

    def one_by_one() -> Tensor:
        outputs = []
        for start, stop in pairwise(places):
            q, k, v = (part[:, :, start:stop] for part in (query, key, value))
            outputs.append(scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True))
        return torch.cat(outputs, dim=2).transpose(1, 2)

    results = []
    try:
        with torch.enable_grad():
            for output in (attend_by_kernels(query, key, value, bounds, None, None), one_by_one()):
                results.append(
                    [output.detach(), *torch.autograd.grad(output.float().square().sum(), (query, key, value))]
                )
        error = max(float((ours - theirs).norm() / theirs.norm()) for ours, theirs in zip(*results, strict=True))
        if error < TOLERANCE:
            return True
        reason = f"they are off by {error:.1%}"
    except RuntimeError as failure:
        reason = str(failure).partition("\n")[0]
    warnings.warn(f"packed responses are attended one by one: torch's kernels for them fail ({reason})", stacklevel=2)
    return False
