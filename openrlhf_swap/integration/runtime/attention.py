"""The attention that a run takes, with or without flash-attn.

Without it, this module stands for those modules of flash-attn that OpenRLHF imports in any case,
not for `flash_attn` itself, so transformers and vLLM still see that there is none. Packed rows are
then attended by an implementation that is registered with transformers: position ids start again
with each response, and layers get the bounds of the responses in the place of a mask of length x
length. GPUs attend all responses in one call of torch's own FlashAttention kernels; elsewhere each
response has a call of SDPA. Other rows are attended as by transformers' `sdpa`.

Shapes: T tokens of a row, H heads, H_kv of keys.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any, NoReturn

import torch
from einops import rearrange  # noqa: F401  # what OpenRLHF imports from flash-attn
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AttentionInterface,
    AttentionMaskInterface,
    PretrainedConfig,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.modeling_flash_attention_utils import _pad_input as pad_input  # noqa: F401  # the same
from transformers.modeling_flash_attention_utils import _unpad_input as unpad_input  # noqa: F401

from openrlhf_swap.integration.patches import EVERY, FLASH_ATTENTION, install
from openrlhf_swap.packages.kernels import (
    Bounds,
    attend_sequences,
    leave_out_cudnn,
    takes_sequences,
)
from openrlhf_swap.packages.versions import check_version, installed_version

FLASH = "flash_attention_2"
NAME = "swap_rows"
ROWS = 1024  # of logits whose sums are taken at a time


@cache
def is_installed() -> bool:
    """Whether the package flash-attn is installed."""
    return importlib.util.find_spec("flash_attn") is not None


@cache
def prepare() -> None:
    """Let this process import OpenRLHF without flash-attn, and attend without cuDNN."""
    install(EVERY)
    leave_out_cudnn()
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, bounds_or_mask)
    if not is_installed() and installed_version("openrlhf"):
        check_version("openrlhf")
        sys.modules.update(dict.fromkeys(FLASH_ATTENTION, sys.modules[__name__]))


def implementation(asked: str, config: PretrainedConfig) -> str:
    """The attention of actor and reference model: the one asked for, or the best that they have.

    `asked` is `--ds.attn_implementation`, and `config` the model's configuration.
    """
    if asked not in (FLASH, "sdpa"):
        return asked
    code = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    # gpt-oss, whose attention has sinks, takes kernels of the hub instead.
    takes_others = getattr(code, "_compatible_flash_implementations", None)
    takes_flash = getattr(code, "_supports_flash_attn", True) and not takes_others
    if asked == FLASH and is_installed() and takes_flash:
        return FLASH
    if not getattr(code, "_supports_sdpa", True):
        return "eager"
    return NAME if getattr(code, "_supports_attention_backend", False) else "sdpa"


def summary(asked: str, config: PretrainedConfig) -> str:
    """A line for the console about the attention that is taken."""
    taken = implementation(asked, config)
    words = {FLASH: "flash-attn", NAME: "torch's, without masks for packed responses"}
    reason = ""
    if taken == "eager" != asked:
        reason = f", because the code of {config.model_type} has no {asked}"
    return f"attention: {words.get(taken, taken)}{reason}"


def bounds_or_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    mask_function: Callable[..., Tensor],
    **options: Any,
) -> Bounds | Tensor | None:
    """The mask that layers get: the bounds of one row's responses, or else the mask of `sdpa`.

    A batch, padding or a cache take the latter. `q_length` is T, `kv_length` also counts what a
    cache holds; `mask_function` says whether a token sees another.
    """
    one_row = batch_size == 1 and q_length == kv_length and options.get("attention_mask") is None
    if not one_row or options.get("use_vmap"):
        return sdpa_mask(batch_size, q_length, kv_length, mask_function=mask_function, **options)
    token = torch.arange(1, q_length, device=options["device"])
    first = token.new_zeros(1)
    sees_the_one_before = mask_function(first, first, token, token - 1)
    starts = (~sees_the_one_before).cpu().nonzero().flatten() + 1
    return Bounds.at([0, *starts.tolist(), q_length], token.device)


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
    options |= {"scaling": scaling, "dropout": dropout}
    if not isinstance(attention_mask, Bounds):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    window = sliding_window
    if window is not None and window >= attention_mask.longest:
        window = None
    heads = (query, key, value)
    if dropout or not takes_sequences(query, value):
        return _one_by_one(module, heads, attention_mask.places, window, options), None
    dtype = value.dtype
    query, key, value = (part[0].transpose(0, 1).to(dtype) for part in heads)
    bounds = attention_mask
    output = attend_sequences(query, key, value, bounds, bounds, scaling, window)
    return output[None], None


def _one_by_one(
    module: nn.Module,
    heads: tuple[Tensor, Tensor, Tensor],
    places: list[int],
    window: int | None,
    options: dict[str, Any],
) -> Tensor:
    """The output of `attend` by a call of SDPA for each response."""
    outputs = []
    for start, stop in pairwise(places):
        q, k, v = (part[:, :, start:stop] for part in heads)
        mask = _window_mask(stop - start, window, heads[0].device)
        output, _ = sdpa_attention_forward(module, q, k, v, mask, **options)
        outputs.append(output)
    return torch.cat(outputs, dim=1)


def _window_mask(length: int, window: int | None, device: torch.device) -> Tensor | None:
    """The (1, 1, length, length) mask of a sliding window; None where it sees all before."""
    if window is None or window >= length:
        return None
    token = torch.arange(length, device=device)
    behind = token[:, None] - token
    return ((behind >= 0) & (behind < window))[None, None]


# The rest of what OpenRLHF imports from flash-attn.


def all_gather(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("flash-attn is not installed; remedy: run without --ds.ring_attn_size")


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor]:
    """Minus the log-probability of each label: logits (n, V) float32, labels (n,) -> ((n,),)."""
    return (_CrossEntropy.apply(logits, labels),)


class _CrossEntropy(torch.autograd.Function):
    """Keeps no tensor of the logits' size but these, and makes one: their gradient."""

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
