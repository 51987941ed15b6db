"""The answer branch, and the slow and obvious way to score it, against which everything else is
tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.rewards.answers import strip_answer


@dataclass(frozen=True)
class AnswerBranch:
    """Close template and answer as tokens, to be appended to any prefix of a rollout."""

    ids: tuple[int, ...]
    scored: tuple[bool, ...]  # for each of them, whether it belongs to the answer


@dataclass(frozen=True)
class ScoreRequest:
    """One response to score."""

    row: int  # in the batch
    prefix_ends: tuple[
        int, ...
    ]  # K+1 places in the padded row: the last prompt token's, each step's last token's
    branch: AnswerBranch


def answer_branch(
    tokenizer: PreTrainedTokenizerBase, close_template: str, answer: str
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
        raise ConfigError(
            f"{type(tokenizer).__name__} is a slow tokenizer; scoring needs a fast one (tokenizer.json)"
        )
    encoded = tokenizer(
        close_template + bare, add_special_tokens=False, return_offsets_mapping=True
    )
    scored = tuple(end > len(close_template) for _, end in encoded["offset_mapping"])
    return AnswerBranch(tuple(encoded["input_ids"]), scored)


@torch.no_grad()
def score_per_prefix(
    model: Callable[..., Any],
    input_ids: Tensor,
    prefix_lengths: Sequence[int],
    branch: AnswerBranch,
) -> Tensor:
    """l_k = mean over the answer's tokens of log p(token | prefix_k, template, answer so far), at
    temperature 1.

    Takes a causal language model, called as `model(input_ids, logits_to_keep=n).logits`, the (T,)
    int64 ids of prompt and response without padding, and K+1 numbers of tokens, prompt included.
    Runs a forward for each prefix. Returns (K+1,) float32, or float64 for a float64 model.
    """
    ids, scored = (
        torch.tensor(values, device=input_ids.device) for values in (branch.ids, branch.scored)
    )
    scores = []
    for length in prefix_lengths:
        sequence = torch.cat([input_ids[:length], ids]).unsqueeze(0)
        logits = widen(model(sequence, logits_to_keep=len(ids) + 1).logits[0, :-1])
        scores.append(
            logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)[scored].mean()
        )
    return torch.stack(scores)


def widen(logits: Tensor) -> Tensor:
    """At least float32: a log-softmax over a large vocabulary is not safe in half precision."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
