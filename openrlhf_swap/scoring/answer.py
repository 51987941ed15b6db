"""What is asked of the policy about a response, and the slow and obvious way to score its answer.

Everything else is tested against `read_per_prefix`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from openrlhf_swap.algorithm.signals import ANSWER_ENTROPY, ANSWER_LOGPROBS, Signal
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
    tokenizer: "PreTrainedTokenizerBase",
    close_template: str,
    answer: str,
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


def by_signal(
    requests: Sequence[ScoreRequest],
    answers: Iterable[Tensor],
) -> Readings:
    """The (K+1,) l_0..l_K and h_0..h_K of the requests that want them.

    Takes a (K+1, 1) tensor l for each request, or (K+1, 2) with h.
    """
    log_probs = []
    entropies = []
    for request, both in zip(requests, answers, strict=True):
        if ANSWER_LOGPROBS.name in request.wanted:
            log_probs.append(both[:, 0])
        if ANSWER_ENTROPY.name in request.wanted:
            entropies.append(both[:, 1])
    return {ANSWER_LOGPROBS.name: log_probs, ANSWER_ENTROPY.name: entropies}


@torch.no_grad()
def read_per_prefix(
    model: nn.Module,
    input_ids: Tensor,
    prefix_lengths: Sequence[int],
    branch: AnswerBranch,
) -> Tensor:
    """l_k = mean over the answer's tokens of log p(token | prefix_k, template, answer so far).

    h_k is the mean of the entropies of these distributions. The temperature is 1. Takes a causal
    language model, called as `model(input_ids, logits_to_keep=n).logits`, the (T,) int64 ids of
    prompt and response without padding, and K+1 numbers of tokens, prompt included. Runs a forward
    for each prefix. Returns (K+1, 2) l and h, float32, or float64 for a float64 model.
    """
    ids = torch.tensor(branch.ids, device=input_ids.device)
    scores = []
    for length in prefix_lengths:
        sequence = torch.cat([input_ids[:length], ids])
        output = model(sequence.unsqueeze(0), logits_to_keep=len(ids) + 1)
        values = values_of(output.logits[0, :-1], ids, entropies=True)
        scores.append(values[branch.places].mean(0))
    return torch.stack(scores)


def values_of(
    logits: Tensor,
    targets: Tensor,
    entropies: bool,
) -> Tensor:
    """(m, 1) log-probabilities of the targets, or (m, 2) with the entropies of the distributions.

    Takes (m, V) logits and (m,) int64 targets; computes in float32, or float64 for float64 logits.
    """
    log_probs = widen(logits).log_softmax(-1)
    del logits  # as many numbers as the log-probabilities
    of_targets = log_probs.gather(-1, targets.unsqueeze(-1))
    if not entropies:
        return of_targets
    of_words = torch.special.entr(log_probs.exp())
    of_tokens = of_words.sum(-1, keepdim=True)
    return torch.cat([of_targets, of_tokens], dim=-1)


def widen(logits: Tensor) -> Tensor:
    """At least float32: a log-softmax over a large vocabulary is not safe in half precision."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(dtype)


def row_positions(attention_mask: Tensor) -> Tensor:
    """The position ids of rows, from their (B, T) mask, 1 for tokens; 0 for padding before them."""
    counted = attention_mask.long().cumsum(-1)
    return (counted - 1).clamp(min=0)
