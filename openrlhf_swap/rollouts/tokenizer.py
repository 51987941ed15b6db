"""Turn a problem into the prompt that a model gets, with a tokenizer that keeps its text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from openrlhf_swap.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

WHITE_SPACE = "a b\nc"


def check_white_space(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that loses spaces or newlines; another space in front is no loss.

    transformers gives some models, such as DeepSeek-R1-Distill-Llama in a folder, the class that their
    tokenizer_config.json names instead of the one that fits their tokenizer.json.

    Raises:
        ConfigError: with the remedy.
    """
    ids = tokenizer(WHITE_SPACE, add_special_tokens=False)["input_ids"]
    decoded = str(tokenizer.decode(ids, skip_special_tokens=False))
    if WHITE_SPACE not in decoded:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'} is loaded as {type(tokenizer).__name__}, which "
            f'makes {decoded!r} of {WHITE_SPACE!r}; set "tokenizer_class": "PreTrainedTokenizerFast" in its '
            "tokenizer_config.json"
        )


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
