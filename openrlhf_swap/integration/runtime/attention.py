"""What OpenRLHF takes from flash-attn, where that is not installed: compiling it takes hours.

OpenRLHF 0.11.2 imports flash-attn in any case. Only the modules that it imports get a stand-in, not `flash_attn`
itself, so transformers and vLLM still see that there is none.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from functools import cache
from typing import Any, NoReturn

import einops
import torch
from torch import Tensor
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig

FLASH = "flash_attention_2"
ROWS = 1024  # of logits whose sums are taken at a time


@cache
def is_installed() -> bool:
    """Whether flash-attn is there."""
    return importlib.util.find_spec("flash_attn") is not None


@cache
def prepare() -> None:
    """Make OpenRLHF importable without flash-attn, and vLLM's sampling free of a compiler. Idempotent."""
    # FlashInfer's sampler is compiled with nvcc when an engine starts.
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    if is_installed():
        return
    modules: dict[str, dict[str, Any]] = {
        "flash_attn.bert_padding": {
            "index_first_axis": lambda values, indices: values[indices],
            "pad_input": _pad_input,
            "rearrange": einops.rearrange,
            "unpad_input": _unpad_input,
        },
        "flash_attn.utils.distributed": {"all_gather": _unavailable},
        "flash_attn.ops.triton.cross_entropy": {"cross_entropy_loss": cross_entropy_loss},
    }
    for name, members in modules.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)


@cache
def implementation(asked: str, model: str) -> str:
    """The attention that actor and reference model run with: as asked, or the best that is there and the model has.

    Args:
        asked: `--ds.attn_implementation`.
        model: folder or id; code that comes with it is trusted, as OpenRLHF does.
    """
    if asked not in (FLASH, "sdpa"):
        return asked
    code = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(AutoConfig.from_pretrained(model, trust_remote_code=True)), None)
    # gpt-oss takes flash-attention with sinks, from kernels of the hub, only.
    has_flash = getattr(code, "_supports_flash_attn", True) and not getattr(
        code, "_compatible_flash_implementations", None
    )
    if asked == FLASH and is_installed() and has_flash:
        return FLASH
    return "sdpa" if getattr(code, "_supports_sdpa", True) else "eager"


def summary(asked: str, model: str) -> str:
    """One line: which attention a run takes, and what the other would change."""
    masks = "packed or padded rows get masks of length x length"
    taken = implementation(asked, model)
    if taken == FLASH:
        return f"attention: flash-attn; with --ds.attn_implementation sdpa, {masks}"
    if taken == "eager" != asked:
        return f"attention: eager, because the code of {model} has no {asked}; {masks}"
    remedy = "is installed" if is_installed() else "can be had on GPUs: FLASH_ATTN=1 bash scripts/setup.sh"
    return f"attention: {taken}, where {masks}; flash-attn, which needs none, {remedy}"


def _unavailable(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("flash-attn is not installed; remedy: run without --ds.ring_attn_size")


def _unpad_input(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(B, T, ...) and mask (B, T) -> (tokens, ...), their places in B * T, cumulated lengths, the longest, lengths."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    cumulated = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[places], places, cumulated, int(lengths.max()), lengths


def _pad_input(values: Tensor, places: Tensor, rows: int, width: int) -> Tensor:
    """The way back: (tokens, ...) -> (B, T, ...), zero where there is no token."""
    padded = values.new_zeros(rows * width, *values.shape[1:])
    return padded.index_copy(0, places, values).unflatten(0, (rows, width))


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor]:
    """Minus the log-probability of each label: logits (n, V) float32 and labels (n,) -> ((n,),), as flash-attn's.

    OpenRLHF's own way without flash-attn keeps two more copies of the logits for the backward pass.
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
