"""Turn a problem into the prompt that a model gets."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def prompt_text(tokenizer: PreTrainedTokenizerBase, problem: str) -> str:
    """Render a problem with the chat template."""
    messages = [{"role": "user", "content": problem}]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, problem: str) -> list[int]:
    """Token ids of a problem rendered with the chat template.

    Without a template: the problem and a newline, with the tokenizer's special tokens, such as a beginning-of-text
    token, which a template would have added itself.
    """
    if tokenizer.chat_template is None:
        ids: list[int] = tokenizer(problem + "\n")["input_ids"]
        return ids
    ids = tokenizer(prompt_text(tokenizer, problem), add_special_tokens=False)["input_ids"]
    return ids
