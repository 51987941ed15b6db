"""The prompts of a model, and the marks of thought and answer of each family of models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

from openrlhf_swap.config import AUTO, SwapConfig
from openrlhf_swap.errors import ConfigError, reader_errors
from openrlhf_swap.rewards.graded_text import NO_MARK, closes_thought

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANSWER = "**Final Answer**\n\\boxed{"
PLAIN_ANSWER = "The final answer is $\\boxed{"
RENDER = "apply_chat_template"  # what OpenRLHF's data set calls, too
WHITE_SPACE = "a b\nc"
# What a chat template writes as today's date: a problem is known by its prompt on another day, too.
TODAY = date(2025, 1, 1)


@dataclass(frozen=True)
class Family:
    """The marks of one family, which is named after itself or its first model."""

    name: str
    start_of_thought: str  # the chat template may write it
    end_of_thought: str  # the steps end before it, and the answer follows it
    close: str  # ends an unfinished thought, up to where the answer begins
    # What identifies the family in a chat template; without it, either mark does.
    recognised_by: str = ""
    answer: str = ANSWER

    @property
    def close_template(self) -> str:
        """Ends an unfinished thought and opens the answer, up to the inside of the box."""
        return self.close + self.answer


# Models that write no marks around their reasoning: Qwen2.5, Qwen2.5-Math and -Coder, Llama 3,
# Gemma 3, OLMo. Their answer follows their reasoning in the same text.
PLAIN = Family("plain", NO_MARK, NO_MARK, "\n\n", answer=PLAIN_ANSWER)
# Qwen3 and 3.5, SmolLM3, Nemotron, GLM 4.5 and later, Kimi K2, Olmo 3 and R1's distillations use
# R1's marks.
R1 = Family("r1", "<think>", "</think>", "\n</think>\n\n")
_HARMONY_END = "<|end|><|start|>assistant<|channel|>final<|message|>"
_COHERE, _COHERE_END = "<|START_THINKING|>", "<|END_THINKING|>"
# Order matters: another family's template may contain R1's marks as well.
FAMILIES = (
    # Harmony: a message in the channel "analysis" ends, and one in the channel "final" begins.
    Family(
        "gpt_oss",
        "<|channel|>analysis<|message|>",
        _HARMONY_END,
        _HARMONY_END,
        recognised_by="<|channel|>",
    ),
    Family("gemma4", "<|channel>thought\n", "<channel|>", "\n<channel|>"),
    Family("mistral", "[THINK]", "[/THINK]", "[/THINK]"),
    Family("kimi_vl", "◁think▷", "◁/think▷", "\n◁/think▷\n\n"),
    Family("seed_oss", "<seed:think>", "</seed:think>", "</seed:think>\n"),
    # Cohere marks the answer, too; Command A's marks differ from those of later models.
    Family(
        "cohere_text",
        _COHERE,
        _COHERE_END,
        f"{_COHERE_END}<|START_TEXT|>",
        recognised_by="<|START_TEXT|>",
    ),
    Family("cohere", _COHERE, _COHERE_END, f"{_COHERE_END}<|START_RESPONSE|>"),
    R1,
)


def find_family(chat_template: str | None) -> Family | None:
    """The family whose marks a chat template contains; None if there are none."""
    template = chat_template or ""
    for family in FAMILIES:
        marks = [family.start_of_thought.strip(), family.end_of_thought]
        if family.recognised_by:
            marks = [family.recognised_by]
        if any(mark in template for mark in marks):
            return family
    return None


def opens_thought(prompt: str, start_of_thought: str) -> bool:
    """Whether a rendered prompt ends with an open thought; always so for a model without marks."""
    return prompt.rstrip().endswith(start_of_thought.rstrip())


def open_thought(prompt: str, start_of_thought: str) -> str:
    """A rendered prompt that ends with an open thought, opened here if it is not yet."""
    if opens_thought(prompt, start_of_thought):
        return prompt
    return f"{prompt}{thought_opening(start_of_thought)}"


def thought_opening(start_of_thought: str) -> str:
    """The line with which a thought begins."""
    return f"{start_of_thought.rstrip()}\n"


def set_template_arguments(
    tokenizer: PreTrainedTokenizerBase, arguments: str | None, system_prompt: str | None = None
) -> None:
    """From now on, render with these arguments of the chat template and this system's turn.

    `arguments` are a JSON object.
    """
    given = _fixed_date(tokenizer) | json.loads(arguments or "{}")
    render = partial(getattr(tokenizer, RENDER), **given)
    if system_prompt:
        if tokenizer.chat_template is None:
            raise ConfigError(
                f"--system-prompt is {system_prompt!r}, but the model has no chat template"
            )
        render = partial(_render_after, render, system_prompt)
    setattr(tokenizer, RENDER, render)


def _fixed_date(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The argument that gives a chat template one date; none for a template without a date."""
    if "strftime_now" in str(tokenizer.chat_template):
        return {"strftime_now": TODAY.strftime}
    return {}


def _render_after(
    render: Callable[..., Any], system_prompt: str, messages: list[Any], **options: Any
) -> Any:
    return render([{"role": "system", "content": system_prompt}, *messages], **options)


@dataclass(frozen=True)
class ChosenMarks:
    """The marks of a model's thoughts.

    `declared` is the family whose marks the chat template contains, `rendered` a prompt.
    """

    family: Family
    declared: Family | None
    start: str
    end: str
    close_template: str
    rendered: str

    @property
    def is_closed(self) -> bool:
        """Whether the prompt of the chat template closes the thought at once."""
        return closes_thought(self.rendered, self.end)

    @property
    def message(self) -> str:
        """What was chosen, and why."""
        scored = f"answers are scored after {self.close_template!r}"
        if self.end == NO_MARK:
            source = "the chat template has none" if self.declared is None else "as given"
            return (
                f"thought: without marks ({self.family.name}: {source}); the reasoning ends where "
                f"the answer is stated; {scored}; a model that thinks in marks needs "
                "--swap.end_of_thought"
            )
        source = self.family.name
        if self.end != self.family.end_of_thought:
            source = "as given"
        if opens_thought(self.rendered, self.start):
            source += ", opened by the chat template"
        if self.is_closed:
            source = "closed by the chat template: the model is asked not to think"
        return f"thought: {self.start!r} to {self.end!r} ({source}); {scored}"

    @property
    def warnings(self) -> list[str]:
        """What is odd about marks that were given."""
        warnings = []
        if self.end not in self.close_template and not self.is_closed:
            warnings.append(
                f"warning: the close template {self.close_template!r} does not contain "
                f"{self.end!r}: answers are scored inside the thought"
            )
        usual = self.declared.end_of_thought if self.declared else self.end
        if usual != self.end:
            warnings.append(
                f"warning: the chat template closes a thought with {usual!r}, not with {self.end!r}"
            )
        return warnings


def resolve_thought(
    config: SwapConfig, tokenizer: PreTrainedTokenizerBase
) -> tuple[SwapConfig, list[str]]:
    """Replace `auto` by the marks of the model's family.

    Returns the settings, and messages about them. A chat template that closes the thought itself
    asks for an answer without thinking: nothing is left to close. A tokenizer that loses white
    space, or the end of the thought, is a ConfigError.
    """
    check_white_space(tokenizer)
    marks = _choose_marks(config, tokenizer)
    decoded = _decode_again(marks.end, tokenizer)
    if marks.end not in decoded:
        raise ConfigError(
            f"--swap.end_of_thought is {marks.end!r}, which the model's tokenizer decodes as "
            f"{decoded!r}; use a text that it preserves"
        )
    chosen = {
        "start_of_thought": marks.start,
        "end_of_thought": marks.end,
        "close_template": marks.close_template,
    }
    return config.replaced(**chosen), [marks.message, *marks.warnings]


def _choose_marks(config: SwapConfig, tokenizer: PreTrainedTokenizerBase) -> ChosenMarks:
    """The given marks, and those of the model's family for the others."""
    template = str(tokenizer.get_chat_template()) if tokenizer.chat_template else None
    declared = find_family(template)
    family = declared or PLAIN
    given = {config.start_of_thought, config.end_of_thought} - {AUTO, NO_MARK}
    if given and declared is None:
        family = R1
    if config.end_of_thought == NO_MARK:
        family = PLAIN
    start = family.start_of_thought
    if config.start_of_thought != AUTO:
        start = config.start_of_thought
    end = family.end_of_thought
    if config.end_of_thought != AUTO:
        end = config.end_of_thought
    rendered = prompt_text(tokenizer, "?") if template else ""
    close = family.close_template
    if end != family.end_of_thought:
        close = f"\n{end}\n\n{ANSWER}"
    if closes_thought(rendered, end):
        close = f"\n\n{ANSWER}"
    if config.close_template != AUTO:
        close = config.close_template
    return ChosenMarks(family, declared, start, end, close, rendered)


def check_white_space(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise ConfigError for a tokenizer that loses spaces or newlines.

    Another space in front is no loss.
    """
    # transformers gives some models, such as DeepSeek-R1-Distill-Llama in a folder, the class that
    # their tokenizer_config.json names instead of the one that fits their tokenizer.json.
    decoded = _decode_again(WHITE_SPACE, tokenizer)
    if WHITE_SPACE not in decoded:
        raise ConfigError(
            f"the tokenizer of {tokenizer.name_or_path or 'the model'} is loaded as "
            f"{type(tokenizer).__name__}, which makes {decoded!r} of {WHITE_SPACE!r}; set "
            '"tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
        )


def _decode_again(text: str, tokenizer: PreTrainedTokenizerBase) -> str:
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return str(tokenizer.decode(ids, skip_special_tokens=False))


def prompt_text(tokenizer: PreTrainedTokenizerBase, problem: str) -> str:
    """A problem rendered with the chat template; ConfigError for a template that fails."""
    messages = [{"role": "user", "content": problem}]
    options = {"tokenize": False, "add_generation_prompt": True, **_fixed_date(tokenizer)}
    with reader_errors(
        "the model's chat template fails ({reason}); correct it, or use another model", ConfigError
    ):
        return str(tokenizer.apply_chat_template(messages, **options))


def prompt_ids(tokenizer: PreTrainedTokenizerBase, problem: str) -> list[int]:
    """A problem rendered with the chat template.

    Without a template, the problem has a newline behind it and the tokenizer's special tokens.
    """
    has_template = tokenizer.chat_template is not None
    text = prompt_text(tokenizer, problem) if has_template else problem + "\n"
    return list(tokenizer(text, add_special_tokens=not has_template)["input_ids"])
