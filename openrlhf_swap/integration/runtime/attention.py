"""The attention that a run takes, with or without flash-attn.

Without it, this module stands for those of flash-attn that OpenRLHF imports in any case, not for
`flash_attn` itself, so transformers and vLLM still see that there is none. Packed rows are then
attended by an implementation that is registered with transformers: position ids start again with
each response, and layers get the bounds of the responses in the place of a mask of length x length.
GPUs attend all of them in one call of torch's own FlashAttention kernels; elsewhere each response
has a call of SDPA. Other rows are attended as by transformers' `sdpa`.

Shapes: T tokens of a row, H heads, of which H_kv for keys.
"""

import importlib.util
import sys
import warnings
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, NoReturn

import torch
from einops import rearrange  # noqa: F401  # what OpenRLHF imports from flash-attn
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import pad, scaled_dot_product_attention
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    AutoConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_flash_attention_utils import _pad_input as pad_input  # noqa: F401  # the same
from transformers.modeling_flash_attention_utils import _unpad_input as unpad_input  # noqa: F401

from openrlhf_swap.integration.patches import EVERY, FLASH_ATTENTION, install
from openrlhf_swap.packages.kernels import leave_out_cudnn
from openrlhf_swap.packages.versions import check_version, installed_version

FLASH, NAME = "flash_attention_2", "swap_rows"
WIDEST, ALIGNED = 256, 8  # heads that FlashAttention takes
TOLERANCE = 0.02  # of the norms of outputs and gradients in bfloat16
ROWS = 1024  # of logits whose sums are taken at a time


@cache
def is_installed() -> bool:
    return importlib.util.find_spec("flash_attn") is not None


@cache
def prepare() -> None:
    """Let OpenRLHF be imported without flash-attn, vLLM sample without a compiler, and SDPA leave
    out cuDNN.
    """
    install(EVERY)
    leave_out_cudnn()
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, bounds_or_mask)
    if not is_installed() and installed_version("openrlhf"):
        check_version("openrlhf")
        sys.modules.update(dict.fromkeys(FLASH_ATTENTION, sys.modules[__name__]))


@cache
def implementation(asked: str, model: str) -> str:
    """The attention of actor and reference model: as asked (`--ds.attn_implementation`), or the
    best that they have.

    Code that comes with the model is trusted, as OpenRLHF does.
    """
    if asked not in (FLASH, "sdpa"):
        return asked
    code = MODEL_FOR_CAUSAL_LM_MAPPING.get(
        type(AutoConfig.from_pretrained(model, trust_remote_code=True)), None
    )
    others = getattr(
        code, "_compatible_flash_implementations", None
    )  # gpt-oss's, with sinks, are kernels of the hub
    has_flash = getattr(code, "_supports_flash_attn", True) and not others
    if asked == FLASH and is_installed() and has_flash:
        return FLASH
    if not getattr(code, "_supports_sdpa", True):
        return "eager"
    return NAME if getattr(code, "_supports_attention_backend", False) else "sdpa"


def summary(asked: str, model: str) -> str:
    taken = implementation(asked, model)
    masks = "with masks of length x length for padded and packed rows"
    costs = {
        FLASH: "flash-attn",
        NAME: "torch's; packed responses get no masks, padded rows get masks of length x length",
        "sdpa": f"sdpa, {masks}",
        "eager": "eager"
        if asked == "eager"
        else f"eager, because the code of {model} has no {asked}; {masks}",
    }
    return f"attention: {costs.get(taken, taken)}"


class Bounds(NamedTuple):
    """Where the responses of a row start, and where the last one ends."""

    places: list[int]
    on_device: Tensor  # (responses + 1,) int32, the same

    @property
    def longest(self) -> int:
        return max(stop - start for start, stop in pairwise(self.places))


def bounds_or_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    **options: Any,
) -> Bounds | Tensor | None:
    """What layers get as their mask: a row's bounds or, for a batch, padding or a cache, the mask
    of `sdpa`.

    `q_length` is T, `kv_length` also counts what a cache holds; `mask_function` says whether a
    token sees another.
    """
    one_row = batch_size == 1 and q_length == kv_length and options.get("attention_mask") is None
    if not one_row or options.get("use_vmap"):
        return sdpa_mask(batch_size, q_length, kv_length, mask_function=mask_function, **options)
    token = torch.arange(1, q_length, device=options["device"])
    if token.is_cuda:
        # Tried here, outside of the layers: inside a checkpointed layer the trial's tensors would
        # count as the layer's.
        kernels_work(token.device)
    first = token.new_zeros(1)
    starts = (~mask_function(first, first, token, token - 1)).cpu().nonzero().flatten() + 1
    places = [0, *starts.tolist(), q_length]
    return Bounds(
        places, torch.tensor(places, dtype=torch.int32).to(token.device, non_blocking=True)
    )


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

    `query` is (1, H, T, D), `key` (1, H_kv, T, D), `value` (1, H_kv, T, D_v); the mask comes from
    `bounds_or_mask`; `sliding_window` counts the tokens that a token sees, itself included. Raises
    ValueError for sinks, `s_aux`.
    """
    if s_aux is not None:
        raise ValueError("attention sinks need other kernels")
    if not isinstance(attention_mask, Bounds):
        more = {"scaling": scaling, "dropout": dropout, **options}
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    window = (
        None
        if sliding_window is None or sliding_window >= attention_mask.longest
        else sliding_window
    )
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
        parts.append(
            sdpa_attention_forward(
                module, q, k, v, mask, scaling=scaling, dropout=dropout, **options
            )[0]
        )
    return torch.cat(parts, dim=1), None


def takes_kernels(query: Tensor, value: Tensor) -> bool:
    """Whether torch's kernels for rows of several responses serve these heads on this device."""
    fits = max(query.shape[-1], value.shape[-1]) <= WIDEST and query.dtype in (
        torch.bfloat16,
        torch.float16,
    )
    return query.is_cuda and fits and kernels_work(query.device)


def attend_by_kernels(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds: Bounds,
    scaling: float | None,
    window: int | None,
) -> Tensor:
    """As `attend`, in one call; zeros, which change no score, fill heads up to a width that kernels
    take.
    """
    width = -(-max(query.shape[-1], value.shape[-1]) // ALIGNED) * ALIGNED
    q, k, v = (
        _widened(part[0].transpose(0, 1).to(value.dtype), width) for part in (query, key, value)
    )
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
    """Try the kernels, forward and backward, beside SDPA: a GPU may be too old for them, or a build
    without them.
    """
    generator = torch.Generator(device).manual_seed(0)
    places = [0, 5, 40]
    bounds = Bounds(places, torch.tensor(places, dtype=torch.int32, device=device))
    query, key, value = (
        torch.randn(1, heads, 40, 64, generator=generator, device=device)
        .bfloat16()
        .requires_grad_()
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
                    [
                        output.detach(),
                        *torch.autograd.grad(output.float().square().sum(), (query, key, value)),
                    ]
                )
        error = max(
            float((ours - theirs).norm() / theirs.norm())
            for ours, theirs in zip(*results, strict=True)
        )
        if error < TOLERANCE:
            return True
        reason = f"they are off by {error:.1%}"
    except RuntimeError as failure:
        reason = str(failure).partition("\n")[0]
    warnings.warn(
        f"packed responses are attended one by one: torch's kernels for them fail ({reason})",
        stacklevel=2,
    )
    return False


# The rest of what OpenRLHF imports from flash-attn.


def all_gather(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("flash-attn is not installed; remedy: run without --ds.ring_attn_size")


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor]:
    """Minus the log-probability of each label: logits (n, V) float32 and labels (n,) -> ((n,),), as
    flash-attn's.
    """
    return (_CrossEntropy.apply(logits, labels),)


class _CrossEntropy(torch.autograd.Function):
    """Keeps nothing of the size of the logits but these, and makes one such tensor: their gradient."""

    @staticmethod
    def forward(context: Any, logits: Tensor, labels: Tensor) -> Tensor:
        sums = torch.cat([part.logsumexp(-1) for part in logits.split(ROWS)])
        context.save_for_backward(logits, sums, labels)
        return sums - logits.gather(-1, labels.unsqueeze(-1)).squeeze(-1)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, None]:
        logits, sums, labels = context.saved_tensors
        result = logits - sums.unsqueeze(-1)
        result.exp_().mul_(gradient.unsqueeze(-1))
        return result.scatter_add_(-1, labels.unsqueeze(-1), -gradient.unsqueeze(-1)), None
