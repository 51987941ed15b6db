"""A problem as the tokens that a model is asked with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_text(tokenizer: PreTrainedTokenizerBase, problem: str) -> str:
    """A problem as the chat template renders it."""
    messages = [{"role": "user", "content": problem}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, problem: str) -> list[int]:
    """Token ids of a problem as the chat template renders it.

    Without a template they are those of the problem and a newline, with the tokenizer's special tokens, such as one
    at the beginning of a text: a template would have brought its own.
    """
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer(problem + "\n")["input_ids"]
        return ids
    ids = tokenizer(prompt_text(tokenizer, problem), add_special_tokens=False)["input_ids"]
    return ids
