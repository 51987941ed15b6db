"""The answer branch: the text that closes a thought and opens the answer, and the answer's tokens after it."""

from dataclasses import dataclass

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
    prefix_ends: tuple[int, ...]  # K+1 places in the padded row: the last prompt token's, each step's last token's
    branch: AnswerBranch


def answer_branch(tokenizer: PreTrainedTokenizerBase, close_template: str, answer: str) -> AnswerBranch:
    r"""Tokenise template and answer as one string and mark the tokens that overlap the answer.

    They are tokenised together because the boundary is not stable: in Qwen's vocabulary `{\`, `{-` and `{x` are single
    tokens. Raises DataError for an empty answer, and ConfigError for a tokenizer that cannot say which characters a
    token covers.
    """
    bare = strip_answer(answer)
    if not bare:
        raise DataError(f"the answer {answer!r} is empty; give every problem a non-empty answer")
    if not tokenizer.is_fast:
        raise ConfigError(f"{type(tokenizer).__name__} is a slow tokenizer; scoring needs a fast one (tokenizer.json)")
    encoded = tokenizer(close_template + bare, add_special_tokens=False, return_offsets_mapping=True)
    start = len(close_template)
    scored = tuple(end > start for _, end in encoded["offset_mapping"])
    return AnswerBranch(tuple(encoded["input_ids"]), scored)
