"""How families of reasoning models mark their thought in a chat template."""

from __future__ import annotations

from dataclasses import dataclass

from openrlhf_swap.rollouts.answers import END_OF_THOUGHT


@dataclass(frozen=True)
class Family:
    """The marks of one family, which is named after itself or the model that it began with."""

    name: str
    start_of_thought: str
    end_of_thought: str


# Qwen3 and 3.5, SmolLM3, Nemotron, GLM 4.5 and later, Kimi K2, Olmo 3 and the distillations of R1 think as R1 does.
R1 = Family("r1", "<think>", END_OF_THOUGHT)
# The order counts: a template of another family may name R1's marks as well.
FAMILIES = (
    # Harmony: a message in the channel "analysis" ends, and one in the channel "final" begins.
    Family("gpt_oss", "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    Family("gemma4", "<|channel>thought\n", "<channel|>"),
    Family("mistral", "[THINK]", "[/THINK]"),
    Family("kimi", "◁think▷", "◁/think▷"),
    Family("seed_oss", "<seed:think>", "</seed:think>"),
    Family("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    R1,
)


def family_of(chat_template: str | None) -> Family:
    """The family whose marks stand in a chat template; R1 where none do, or without a template."""
    for family in FAMILIES:
        if chat_template and (family.end_of_thought in chat_template or family.start_of_thought in chat_template):
            return family
    return R1


def unread_marks(chat_template: str | None) -> str | None:
    """What goes wrong with a model that does not close its thought with `</think>`; None for one that does."""
    family = family_of(chat_template)
    if family is R1:
        return None
    return (
        f"its chat template closes a thought with {family.end_of_thought!r} ({family.name}), but steps and answers "
        f"are read up to and behind {END_OF_THOUGHT} only: whole responses would be cut into steps, and graded"
    )
