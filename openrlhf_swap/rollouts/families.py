"""How families of reasoning models mark their thought, and where they put the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rollouts.tokenizer import prompt_text

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "**Final Answer**\n\\boxed{"


@dataclass(frozen=True)
class Family:
    """The marks of one family, which is named after itself or the model that it began with.

    Attributes:
        name: of the family.
        start_of_thought: opens the thought; the chat template may write it.
        end_of_thought: closes the thought: the steps end before it, and the answer stands behind it.
        close_template: ends an unfinished thought and opens the answer, up to the inside of the box.
        recognised_by: texts of which each tells the family where it stands in a chat template.
    """

    name: str
    start_of_thought: str
    end_of_thought: str
    close_template: str
    recognised_by: tuple[str, ...]


def _family(
    name: str, start: str, end: str, between: str = "\n\n", before: str = "\n", recognised_by: str | None = None
) -> Family:
    """A family recognised by its marks, unless another text is given."""
    return Family(
        name, start, end, before + end + between + ANSWER, (recognised_by,) if recognised_by else (start.strip(), end)
    )


# Qwen3 and 3.5, SmolLM3, Nemotron, GLM 4.5 and later, Kimi K2, Olmo 3 and the distillations of R1 think as R1 does.
R1 = _family("r1", "<think>", "</think>")
_HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"
# The order counts: a template of another family may name R1's marks as well.
FAMILIES = (
    # Harmony: a message in the channel "analysis" ends, and one in the channel "final" begins.
    _family(
        "gpt_oss", "<|channel|>analysis<|message|>", _HARMONY_END, between="", before="", recognised_by="<|channel|>"
    ),
    _family("gemma4", "<|channel>thought\n", "<channel|>", between=""),
    _family("mistral", "[THINK]", "[/THINK]", between="", before=""),
    _family("kimi_vl", "◁think▷", "◁/think▷"),
    _family("seed_oss", "<seed:think>", "</seed:think>", between="\n", before=""),
    # Cohere puts the answer between marks of its own; Command A's are others than those of the models after it.
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
    """The family whose marks stand in a chat template; None where none do, or without a template."""
    template = chat_template or ""
    return next((family for family in FAMILIES if any(text in template for text in family.recognised_by)), None)


def opens_thought(prompt: str, start_of_thought: str) -> bool:
    """Whether a prompt, as a chat template renders it, ends with the thought opened."""
    return prompt.rstrip().endswith(start_of_thought.rstrip())


def resolve_thought(config: SwapConfig, tokenizer: PreTrainedTokenizerBase) -> tuple[SwapConfig, list[str]]:
    """The settings with the marks of the model's family in the place of `auto`, and what to tell about them.

    A chat template that closes the thought itself asks for an answer without one: nothing is left to close.

    Raises:
        ConfigError: for an end of the thought that the tokenizer does not give back.
    """
    template = str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
    found = family_of(template)
    family = found or R1
    start = family.start_of_thought if config.start_of_thought == AUTO else config.start_of_thought
    end = family.end_of_thought if config.end_of_thought == AUTO else config.end_of_thought
    tokens = _tokens_of(end, tokenizer)
    asked = prompt_text(tokenizer, "?").rstrip() if template else ""
    is_closed = asked.endswith(end)
    close = config.close_template
    if close == AUTO and is_closed:
        close = "\n\n" + ANSWER
    elif close == AUTO:
        close = family.close_template if end == family.end_of_thought else _family("", start, end).close_template
    resolved = config.replaced(start_of_thought=start, end_of_thought=end, close_template=close)
    if is_closed:
        source = "closed by the chat template: the model is asked not to think"
    elif found is None and config.end_of_thought == AUTO:
        source = f"assumed, the chat template names none; {end!r} takes {tokens} tokens"
    else:
        name = family.name if end == family.end_of_thought else "as given"
        source = name + (", opened by the chat template" if opens_thought(asked, start) else "")
    messages = [f"thought: {start!r} to {end!r} ({source}); answers are scored behind {close!r}"]
    if end not in close and not is_closed:
        messages.append(
            f"warning: the close template {close!r} does not hold {end!r}: answers are scored in the thought"
        )
    if found and end != found.end_of_thought:
        messages.append(f"warning: the chat template closes a thought with {found.end_of_thought!r}, not with {end!r}")
    return resolved, messages


def _tokens_of(end: str, tokenizer: PreTrainedTokenizerBase) -> int:
    """How many tokens the end of the thought takes; raises ConfigError when they do not give it back."""
    ids = tokenizer(end, add_special_tokens=False)["input_ids"]
    back = str(tokenizer.decode(ids, skip_special_tokens=False))
    if end not in back:
        raise ConfigError(
            f"--swap.end_of_thought is {end!r}, which the model's tokenizer gives back as {back!r}; use a text that "
            "it knows"
        )
    return len(ids)
