"""Stands for the modules of flash-attn from which OpenRLHF 0.11.2 imports in any case: compiling it takes hours."""

from typing import Any, NoReturn

import torch
from einops import rearrange
from torch import Tensor

__all__ = ["all_gather", "cross_entropy_loss", "index_first_axis", "pad_input", "rearrange", "unpad_input"]
ROWS = 1024  # of logits whose sums are taken at a time


def all_gather(*_args: Any, **_kwargs: Any) -> NoReturn:
    raise RuntimeError("flash-attn is not installed; remedy: run without --ds.ring_attn_size")


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    return values[indices]


def unpad_input(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(B, T, ...) and mask (B, T) -> (tokens, ...), places in B * T, cumulative lengths, the largest one, lengths."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    cumulated = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[places], places, cumulated, int(lengths.max()), lengths


def pad_input(values: Tensor, places: Tensor, rows: int, width: int) -> Tensor:
    """Undoes `unpad_input`: (tokens, ...) -> (B, T, ...), zero where there is no token."""
    padded = values.new_zeros(rows * width, *values.shape[1:])
    return padded.index_copy(0, places, values).unflatten(0, (rows, width))


def cross_entropy_loss(logits: Tensor, labels: Tensor) -> tuple[Tensor]:
    """Minus the log-probability of each label: logits (n, V) float32 and labels (n,) -> ((n,),), as flash-attn's.

    Without flash-attn, OpenRLHF itself keeps two more copies of the logits for the backward pass.
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
