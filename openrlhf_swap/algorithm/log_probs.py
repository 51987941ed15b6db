"""log pi(y_t | y_<t) from the last hidden states, without holding the logits of all tokens at once.

A token has one logit for each entry of the vocabulary: for 14,000 tokens and 151,936 entries they
take 8 GiB in float32, and their gradients twice that. Here the logits of a few tokens at a time are
computed, and recomputed in the backward pass, where they turn into gradients of the hidden states
and of the weight.

Shapes: n tokens, m of them in a chunk, H hidden size, V vocabulary.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional


@dataclass(frozen=True)
class LogitTransform:
    """A model's transform of its head's output: z = cap tanh(scale x / cap), or scale x."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Turn the head's output into the model's logits, in place."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.cap is None:
            return logits
        return logits.div_(self.cap).tanh_().mul_(self.cap)

    def cap_slope(self, logits: Tensor, temperature: float) -> Tensor | None:
        """1 - (z / cap)^2, from z / temperature: dz/dx is scale times this. None without a cap."""
        if self.cap is None:
            return None
        return 1 - (logits * (temperature / self.cap)) ** 2


@dataclass(frozen=True)
class HeadPass:
    """The settings with which log-probabilities are computed from the head."""

    transform: LogitTransform  # the model's
    temperature: float  # divides the logits
    chunk: int  # tokens whose logits are held at a time
    entropy: bool = False  # whether to compute the entropy as well


def token_log_probs(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    wanted: Tensor,
    settings: HeadPass,
) -> Tensor:
    """The log-probability of each wanted token and, if asked for, its distribution's entropy.

    Takes the head's (n, H) input, (V, H) weight and (V,) bias, if any; the (n,) int64 tokens that
    the positions predict, and the int64 positions that are wanted, each at most once: the others
    get 0. Returns (n, 1) float32, or (n, 2) with the entropy, differentiable once, with respect to
    hidden, weight and bias. Values and sums are float32; products with the weight are computed in
    its dtype, as in the model's own head.
    """
    function: Any = _TokenLogProbs  # its `apply` is untyped
    values: Tensor = function.apply(hidden, weight, bias, targets, wanted, settings)
    return values


class _TokenLogProbs(torch.autograd.Function):
    """Saves no logits.

    The weight is saved as it was passed: ZeRO-3 fills in its values for each pass.
    """

    @staticmethod
    def forward(
        context: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        wanted: Tensor,
        settings: HeadPass,
    ) -> Tensor:
        values = hidden.new_zeros(len(hidden), 1 + settings.entropy, dtype=torch.float32)
        sums = hidden.new_zeros(len(hidden), dtype=torch.float32)
        for part in torch.split(wanted, settings.chunk):
            logits = _logits(hidden[part], weight, bias, settings)
            values[part], sums[part] = _values(logits, targets[part], settings.entropy)
            del logits  # before the next ones are made
        context.save_for_backward(hidden, weight, bias, targets, wanted, sums, values)
        context.settings = settings
        return values

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, wanted, sums, values = context.saved_tensors
        settings = context.settings
        parts = torch.split(wanted, settings.chunk)
        # Gradients of the weight are summed over the chunks in float32; a single chunk needs no
        # such buffer.
        weight_dtype = weight.dtype if len(parts) == 1 else torch.float32
        _, needs_weight, needs_bias, *_ = context.needs_input_grad
        hidden_grad = torch.zeros_like(hidden)
        weight_grad = bias_grad = None
        if needs_weight:
            weight_grad = torch.zeros_like(weight, dtype=weight_dtype)
        if needs_bias:
            bias_grad = torch.zeros_like(bias, dtype=torch.float32)
        for part in parts:
            logits = _logits(hidden[part], weight, bias, settings)
            logit_grads = _logit_gradients(
                logits, targets[part], sums[part], values[part], gradient[part], settings
            )
            del logits  # shares memory with the gradients, unless there is a cap
            if bias_grad is not None:
                bias_grad += logit_grads.sum(0)
            logit_grads = logit_grads.to(weight.dtype)
            hidden_grad[part] = logit_grads @ weight
            if weight_grad is not None:
                weight_grad += logit_grads.t() @ hidden[part]
            del logit_grads  # before the next ones are made
        if weight_grad is not None:
            weight_grad = weight_grad.to(weight.dtype)
        if bias_grad is not None:
            bias_grad = bias_grad.to(weight.dtype)
        return hidden_grad, weight_grad, bias_grad, None, None, None


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, settings: HeadPass) -> Tensor:
    """(m, V) float32 logits of the policy."""
    logits = functional.linear(hidden, weight, bias).float()
    logits = settings.transform(logits)
    if settings.temperature == 1.0:
        return logits
    return logits.div_(settings.temperature)


def _values(logits: Tensor, targets: Tensor, entropy: bool) -> tuple[Tensor, Tensor]:
    """(m, 1) log-probabilities, or (m, 2) with entropies, and (m,) log-sum-exps.

    Overwrites the logits. Entropies are in nats.
    """
    chosen = logits.gather(-1, targets.unsqueeze(-1))
    top = logits.amax(-1, keepdim=True)
    logits.sub_(top)
    powers = logits.exp() if entropy else logits.exp_()
    total = powers.sum(-1, keepdim=True)
    sums = total.log() + top
    columns = [chosen - sums]
    if entropy:
        weighted = powers.mul_(logits).sum(-1, keepdim=True)
        columns.append(total.log() - weighted / total)
    return torch.cat(columns, -1), sums.squeeze(-1)


def _logit_gradients(
    logits: Tensor,
    targets: Tensor,
    sums: Tensor,
    values: Tensor,
    gradient: Tensor,
    settings: HeadPass,
) -> Tensor:
    """(m, V) gradients of the head's output x; overwrites the logits z.

    With p = softmax(z): d log p_y / dz = 1_y - p, and d entropy / dz = -p (log p + entropy).
    """
    # Constant factors multiply the gradients of the values (one or two a token) instead of those of
    # the logits (V a token).
    gradient = gradient * (settings.transform.scale / settings.temperature)
    slope = settings.transform.cap_slope(logits, settings.temperature)
    log_p = logits.sub_(sums.unsqueeze(-1))
    factor = -gradient[:, :1]
    if settings.entropy:
        factor = factor - gradient[:, 1:] * (log_p + values[:, 1:])
    logit_grads = log_p.exp_().mul_(factor)
    every = torch.arange(len(targets), device=targets.device)
    logit_grads[every, targets] += gradient[:, 0]
    return logit_grads if slope is None else logit_grads.mul_(slope)
