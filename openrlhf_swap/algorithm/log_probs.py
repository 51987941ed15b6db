"""log pi(y_t | y_<t) from the last hidden states, without the logits of all tokens at once.

The logits of a token are as many as the vocabulary has entries: of 14,000 tokens and 151,936 entries they take 8 GiB
in float32, and their gradients twice that. Here those of a few tokens are made at a time and made again in the
backward pass, where they become gradients of the hidden states and of the weight.

Shapes: n tokens, m of them in a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to the output of its head: z = cap tanh(scale x / cap), or scale x without a cap."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """The logits of the model; in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        return logits if self.cap is None else logits.div_(self.cap).tanh_().mul_(self.cap)

    def slope(self, logits: Tensor) -> Tensor | float:
        """Of z by x, where the model's logits are z."""
        return self.scale if self.cap is None else self.scale * (1 - (logits / self.cap) ** 2)


@dataclass(frozen=True)
class HeadPass:
    """How log-probabilities are made.

    Attributes:
        transform: of the model.
        temperature: of the policy, which divides its logits.
        chunk: tokens whose logits are held at a time.
        entropy: whether the entropy is wanted, too.
    """

    transform: LogitTransform
    temperature: float
    chunk: int
    entropy: bool = False


def token_log_probs(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, wanted: Tensor, how: HeadPass
) -> Tensor:
    """The log-probability of each wanted token and, where asked for, the entropy of its distribution in nats.

    Values and sums are float32; the products with the weight are in its dtype, as in the model's own head.

    Args:
        hidden: (n, H), what the head gets.
        weight: (V, H) of the head.
        bias: (V,), or none.
        targets: (n,) int64, the token that each position predicts.
        wanted: int64 positions in `hidden`, each at most once; the others get 0.
        how: temperature, chunk and the rest.

    Returns:
        (n, 1) float32, or (n, 2) with the entropy. Can be differentiated once, by hidden, weight and bias.
    """
    function: Any = _TokenLogProbs  # whose `apply` comes without types
    values: Tensor = function.apply(hidden, weight, bias, targets, wanted, how)
    return values


class _TokenLogProbs(torch.autograd.Function):
    """Keeps no logits. The weight is kept as it was given: ZeRO-3 puts its values in place for either pass."""

    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        wanted: Tensor,
        how: HeadPass,
    ) -> Tensor:
        values = hidden.new_zeros(len(hidden), 1 + how.entropy, dtype=torch.float32)
        sums = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for part in torch.split(wanted, how.chunk):
            values[part], sums[part] = _values(_logits(hidden[part], weight, bias, how), targets[part], how.entropy)
        context.save_for_backward(hidden, weight, bias, targets, wanted, sums, values)
        context.how = how
        return values

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, wanted, sums, values = context.saved_tensors
        parts = torch.split(wanted, context.how.chunk)
        # The chunks' parts are added up in float32; a single one needs no room for that.
        kinds = (hidden.dtype, weight.dtype if len(parts) == 1 else torch.float32, torch.float32)
        by_hidden, by_weight, by_bias = (
            torch.zeros_like(tensor, dtype=kind) if needed else None
            for tensor, kind, needed in zip((hidden, weight, bias), kinds, context.needs_input_grad, strict=False)
        )
        for part in parts:
            logits = _logits(hidden[part], weight, bias, context.how)
            slopes = _slopes(logits, targets[part], sums[part], values[part], gradient[part], context.how)
            del logits  # the same memory, unless there is a cap
            if by_bias is not None:
                by_bias += slopes.sum(0)
            slopes = slopes.to(weight.dtype)
            if by_hidden is not None:
                by_hidden[part] = slopes @ weight
            if by_weight is not None:
                by_weight += slopes.t() @ hidden[part]
            del slopes  # before the next ones are made
        by_weight, by_bias = (None if by is None else by.to(weight.dtype) for by in (by_weight, by_bias))
        return by_hidden, by_weight, by_bias, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, how: HeadPass) -> Tensor:
    """(m, V) float32, those of the policy."""
    logits = how.transform(functional.linear(hidden, weight, bias).float())
    return logits if how.temperature == 1.0 else logits.div_(how.temperature)


def _values(logits: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
    """(m, 1) log-probabilities, or (m, 2) with entropies, and (m,) logarithms of the sums; overwrites the logits."""
    chosen = logits.gather(-1, targets.unsqueeze(-1))
    top = logits.amax(-1, keepdim=True)
    logits.sub_(top)
    powers = logits.exp() if entropy else logits.exp_()
    total = powers.sum(-1, keepdim=True)
    sums = total.log() + top
    columns = [chosen - sums]
    if entropy:
        columns.append(total.log() - powers.mul_(logits).sum(-1, keepdim=True) / total)
    return torch.cat(columns, -1), sums.squeeze(-1)


def _slopes(logits: Tensor, targets: Tensor, sums: Tensor, values: Tensor, gradient: Tensor, how: HeadPass) -> Tensor:
    """(m, V) gradients of the head's output x; overwrites the logits z.

    With p = softmax(z): d log p_y / dz = 1_y - p, and d entropy / dz = -p (log p + entropy).
    """
    steepness = how.transform.slope(logits * how.temperature if how.transform.cap else logits)
    log_p = logits.sub_(sums.unsqueeze(-1))
    factor = -gradient[:, :1]
    if how.entropy:
        factor = factor - gradient[:, 1:] * (log_p + values[:, 1:])
    slopes = log_p.exp_().mul_(factor)
    slopes[torch.arange(len(targets), device=targets.device), targets] += gradient[:, 0]
    return slopes.mul_(steepness).div_(how.temperature)
