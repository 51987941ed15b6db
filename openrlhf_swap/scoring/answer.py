"""Requests to the policy about a response, and the slow and obvious way to score its answer.

Everything else is tested against `read_per_prefix`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, Signal
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.rewards.answers import strip_answer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LOGITS = 1024  # tokens whose logits are widened at a time
# By a signal's name, one tensor on the CPU for each request that wants it, in order.
Readings = dict[str, list[Tensor]]


@dataclass(frozen=True)
class AnswerBranch:
    """Close template and answer as tokens, to be appended to any prefix of a response.

    `scored` says of each token whether it belongs to the answer.
    """

    ids: tuple[int, ...]
    scored: tuple[bool, ...]

    @property
    def places(self) -> list[int]:
        """The places of the answer's tokens."""
        return [place for place, used in enumerate(self.scored) if used]


@dataclass(frozen=True)
class ScoreRequest:
    """The signals that are wanted of one response of a batch.

    Attributes:
        row: the response's row in the batch.
        prefix_ends: K+1 places in the padded row: the last token of the prompt and of each step.
        branch: close template and answer, for the signals that score the answer.
        wanted: names of the signals that are wanted (`algorithm.signals`).
        generated_ends: K places in the padded row, the last token of each step that the policy
            generated itself; empty where no step ends with an observation.
        need_window: for `need`, the number of later steps that are read again; 0 for all of them.
        need_every: for `need`, one step of so many is hidden.
    """

    row: int
    prefix_ends: tuple[int, ...]
    branch: AnswerBranch | None = None
    wanted: tuple[str, ...] = (ANSWER_LOGPROBS.name,)
    generated_ends: tuple[int, ...] = ()
    need_window: int = 0
    need_every: int = 1

    @property
    def own_ends(self) -> tuple[int, ...]:
        """K places in the padded row, the last token of each step that the policy generated."""
        return self.generated_ends or self.prefix_ends[1:]


def naming(requests: Iterable[ScoreRequest], signal: Signal) -> list[ScoreRequest]:
    """The requests that want a signal."""
    return [request for request in requests if signal.name in request.wanted]


def answer_branch(
    tokenizer: "PreTrainedTokenizerBase", close_template: str, answer: str
) -> AnswerBranch:
    r"""Tokenise template and answer as one string and mark the tokens that overlap the answer.

    They are tokenised together because the boundary is not stable: in Qwen's vocabulary `{\`, `{-`
    and `{x` are single tokens. Raises DataError for an empty answer, and ConfigError for a
    tokenizer that cannot say which characters a token covers.
    """
    bare = strip_answer(answer)
    if not bare:
        raise DataError(f"the answer {answer!r} is empty; give every problem a non-empty answer")
    if not tokenizer.is_fast:
        kind = type(tokenizer).__name__
        raise ConfigError(f"{kind} is a slow tokenizer; scoring needs a fast one (tokenizer.json)")
    text = close_template + bare
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    scored = [end > len(close_template) for _, end in encoded["offset_mapping"]]
    return AnswerBranch(tuple(encoded["input_ids"]), tuple(scored))


@torch.no_grad()
def read_per_prefix(
    model: nn.Module, input_ids: Tensor, prefix_lengths: Sequence[int], branch: AnswerBranch
) -> Tensor:
    """l_k = mean over the answer's tokens of log p(token | prefix_k, template, answer so far).

    The temperature is 1. Takes a causal language model, called as `model(input_ids,
    logits_to_keep=n).logits`, the (T,) int64 ids of prompt and response without padding, and K+1
    numbers of tokens, prompt included. Runs a forward for each prefix. Returns (K+1,)
    float32, or float64 for a float64 model.
    """
    ids = torch.tensor(branch.ids, device=input_ids.device)
    scores = []
    for length in prefix_lengths:
        sequence = torch.cat([input_ids[:length], ids])
        output = model(sequence.unsqueeze(0), logits_to_keep=len(ids) + 1)
        log_probs = log_probs_of(output.logits[0, :-1], ids)
        scores.append(log_probs[branch.places].mean())
    return torch.stack(scores)


def log_probs_of(logits: Tensor, targets: Tensor) -> Tensor:
    """(m,) log-probabilities of the targets, from (m, V) logits and (m,) int64 targets.

    Computes in float32, or float64 for float64 logits.
    """
    log_probs = widen(logits).log_softmax(-1)
    return log_probs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def widen(logits: Tensor) -> Tensor:
    """Logits of any shape in float32, or in float64 if they are.

    In half precision a log-softmax over a large vocabulary is not safe.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(dtype)


def row_positions(attention_mask: Tensor) -> Tensor:
    """The position ids of rows, from their (B, T) mask: the number of a token's context, from 1.

    They begin anew with each context, and with padding, which is 0 in the mask.
    """
    place = torch.arange(attention_mask.shape[1], device=attention_mask.device)
    # The first column is compared with the last, which does not matter: its place is 0.
    is_first = attention_mask != attention_mask.roll(1, 1)
    first_so_far = torch.where(is_first, place, 0).cummax(-1).values
    return place - first_so_far
