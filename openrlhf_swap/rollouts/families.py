"""How each family of reasoning models marks its thought, and where it puts the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rollouts.tokenizer import check_white_space, prompt_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "**Final Answer**\n\\boxed{"


@dataclass(frozen=True)
class Family:
    """The marks of one family, which is named after itself or its first model.

    Attributes:
        name: of the family.
        start_of_thought: opens the thought; the chat template may write it.
        end_of_thought: closes the thought; the steps end before it, and the answer follows it.
        close_template: ends an unfinished thought and opens the answer, up to the inside of the box.
        recognised_by: texts, any of which identifies the family when a chat template contains it.
    """

    name: str
    start_of_thought: str
    end_of_thought: str
    close_template: str
    recognised_by: tuple[str, ...]


def _family(
    name: str, start: str, end: str, between: str = "\n\n", before: str = "\n", recognised_by: str | None = None
) -> Family:
    """Make a family that is recognised by its marks, unless another text is given."""
    return Family(
        name, start, end, before + end + between + ANSWER, (recognised_by,) if recognised_by else (start.strip(), end)
    )


# Qwen3 and 3.5, SmolLM3, Nemotron, GLM 4.5 and later, Kimi K2, Olmo 3 and R1's distillations use R1's marks.
R1 = _family("r1", "<think>", "</think>")
_HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"
# Order matters: another family's template may contain R1's marks as well.
FAMILIES = (
    # Harmony: a message in the channel "analysis" ends, and one in the channel "final" begins.
    _family(
        "gpt_oss", "<|channel|>analysis<|message|>", _HARMONY_END, between="", before="", recognised_by="<|channel|>"
    ),
    _family("gemma4", "<|channel>thought\n", "<channel|>", between=""),
    _family("mistral", "[THINK]", "[/THINK]", between="", before=""),
    _family("kimi_vl", "◁think▷", "◁/think▷"),
    _family("seed_oss", "<seed:think>", "</seed:think>", between="\n", before=""),
    # Cohere marks the answer, too; Command A's marks differ from those of later models.
    _family(
        "cohere_text",
        *("<|START_THINKING|>", "<|END_THINKING|>"),
        between="<|START_TEXT|>",
        before="",
        recognised_by="<|START_TEXT|>",
    ),
    _family("cohere", "<|START_THINKING|>", "<|END_THINKING|>", between="<|START_RESPONSE|>", before=""),
    R1,
)


def family_of(chat_template: str | None) -> Family | None:
    """The family whose marks a chat template contains; None without such marks or without a template."""
    template = chat_template or ""
    return next((family for family in FAMILIES if any(text in template for text in family.recognised_by)), None)


def opens_thought(prompt: str, start_of_thought: str) -> bool:
    """Whether a rendered prompt ends with an open thought."""
    return prompt.rstrip().endswith(start_of_thought.rstrip())


def with_open_thought(prompt: str, start_of_thought: str) -> str:
    """A rendered prompt that ends with an open thought, whether the chat template opens it or not."""
    return prompt if opens_thought(prompt, start_of_thought) else f"{prompt}{opening(start_of_thought)}"


def opening(start_of_thought: str) -> str:
    """What `with_open_thought` adds."""
    return f"{start_of_thought.rstrip()}\n"


def resolve_thought(config: SwapConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[SwapConfig, list[str]]:
    """Replace `auto` by the marks of the model's family; returns the settings, and messages about them.

    A chat template that closes the thought itself asks for an answer without thinking: nothing is left to close.

    Raises:
        ConfigError: for a tokenizer that loses white space, and for an end of the thought that it does not decode to
            the same text.
    """
    check_white_space(tokenizer)
    template = str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
    declared = family_of(template)
    family = declared or R1
    start = family.start_of_thought if config.start_of_thought == AUTO else config.start_of_thought
    end = family.end_of_thought if config.end_of_thought == AUTO else config.end_of_thought
    tokens = _tokens_of(end, tokenizer)
    rendered = prompt_text(tokenizer, "?").rstrip() if template else ""
    is_closed = rendered.endswith(end)
    close = config.close_template
    if close == AUTO and is_closed:
        close = "\n\n" + ANSWER
    elif close == AUTO:
        close = family.close_template if end == family.end_of_thought else _family("", start, end).close_template
    resolved = config.replaced(start_of_thought=start, end_of_thought=end, close_template=close)
    if is_closed:
        source = "closed by the chat template: the model is asked not to think"
    elif declared is None and config.end_of_thought == AUTO:
        source = f"assumed, because the chat template has none; {end!r} takes {tokens} tokens"
    else:
        name = family.name if end == family.end_of_thought else "as given"
        source = name + (", opened by the chat template" if opens_thought(rendered, start) else "")
    messages = [f"thought: {start!r} to {end!r} ({source}); answers are scored after {close!r}"]
    if end not in close and not is_closed:
        messages.append(
            f"warning: the close template {close!r} does not contain {end!r}: answers are scored inside the thought"
        )
    if declared and end != declared.end_of_thought:
        messages.append(
            f"warning: the chat template closes a thought with {declared.end_of_thought!r}, not with {end!r}"
        )
    return resolved, messages


def _tokens_of(end: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens the end of the thought takes; raises ConfigError if they do not decode to it."""
    ids = tokenizer(end, add_special_tokens=False)["input_ids"]
    decoded = str(tokenizer.decode(ids, skip_special_tokens=False))
    if end not in decoded:
        raise ConfigError(
            f"--swap.end_of_thought is {end!r}, which the model's tokenizer decodes as {decoded!r}; use a text that "
            "it preserves"
        )
    return len(ids)
