"""Problems as prompts; each family's thought, steps, branch and grade, by hand."""

import os
from dataclasses import dataclass

import pytest
from support.pieces import tokenizer_of
from support.real_tokenizers import deepseek, gpt_oss, qwen3_5
from transformers import PreTrainedTokenizerFast

from openrlhf_swap import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rollouts.families import prompt_ids, resolve_thought
from openrlhf_swap.rollouts.rollout import StepReader
from openrlhf_swap.scoring.answer import answer_branch

ASK = "{% for m in messages %}USER {{ m.content }}\n{% endfor %}"
HEAD = "**Final Answer**\n\\boxed{"
# Six tokens and twelve, a character each: with M = 6 a step ends at each newline.
THOUGHT = "3+4=7\n\\boxed{11}?\n"
WORDS = ("analysis", "final", "assistant", "thought")
STEPS = ["3+4=7\n", "\\boxed{11}?\n"]


@dataclass(frozen=True)
class Case:
    """A model: what its template adds, what it writes around the thought, and what is made of that.

    `{}` in `response` stands for the thought, `{answer}` for what the model answers.
    """

    template: str
    special: tuple[str, ...]
    response: str
    family: str
    end: str
    close: str
    note: str = ""
    first: str = ""  # what stands in the first step before the thought


THINK = ("<think>", "</think>", "<|im_end|>")
R1_END, R1_CLOSE = "</think>", f"\n</think>\n\n{HEAD}"
OPENED = ", opened by the chat template"
CASES = {
    "deepseek_r1": Case(
        ASK + "{{'<\uff5cAssistant\uff5c><think>\\n'}}",
        ("<think>", "</think>", "<\uff5cend▁of▁sentence\uff5c>"),
        "{}</think>\n\n{answer}<\uff5cend▁of▁sentence\uff5c>",
        *("r1", R1_END, R1_CLOSE, OPENED),
    ),
    "qwen3": Case(
        "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') if message %}"
        + ASK
        + "ASSISTANT\n",
        THINK,
        "<think>\n{}</think>\n\n{answer}<|im_end|>",
        *("r1", R1_END, R1_CLOSE, "", "<think>\n"),
    ),
    "qwen3.5": Case(
        ASK + "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
        "{% else %}<think>\n{% endif %}",
        THINK,
        "{}</think>\n\n{answer}<|im_end|>",
        *("r1", R1_END, R1_CLOSE, OPENED),
    ),
    "glm": Case(
        ASK + "{% if messages[1] %}{{- '<think></think>' -}}{% endif %}<|assistant|>",
        ("<think>", "</think>", "<|user|>", "<|assistant|>"),
        "<think>{}</think>\n{answer}<|user|>",
        *("r1", R1_END, R1_CLOSE, "", "<think>"),
    ),
    "gpt_oss": Case(
        ASK
        + "{% if messages[1] %}{{- '<|start|>assistant<|channel|>final<|message|>' }}{% endif %}"
        "<|start|>assistant",
        ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>"),
        "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{answer}<|return|>",
        "gpt_oss",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
        f"<|end|><|start|>assistant<|channel|>final<|message|>{HEAD}",
        first="<|channel|>analysis<|message|>",
    ),
    "gemma4": Case(
        ASK + "<|turn>model\n"
        "{% if messages[1] %}{{- '<|channel>thought\\n' + thought + '<channel|>' -}}{% endif %}",
        ("<|channel>", "<channel|>", "<turn|>", "<|turn>"),
        "<|channel>thought\n{}<channel|>{answer}<turn|>",
        *("gemma4", "<channel|>", f"\n<channel|>{HEAD}", "", "<|channel>thought\n"),
    ),
    "magistral": Case(
        "First [THINK]think[/THINK], then answer.{{ '[INST]' + messages[0].content + '[/INST]' }}",
        ("[THINK]", "[/THINK]", "[INST]", "[/INST]", "</s>"),
        "[THINK]{}[/THINK]{answer}</s>",
        *("mistral", "[/THINK]", f"[/THINK]{HEAD}", "", "[THINK]"),
    ),
    "kimi_vl": Case(
        ASK + "<|im_assistant|>{{ '◁think▷' }}",
        ("◁think▷", "◁/think▷", "<|im_end|>", "<|im_assistant|>"),
        "{}◁/think▷{answer}<|im_end|>",
        *("kimi_vl", "◁/think▷", f"\n◁/think▷\n\n{HEAD}", OPENED),
    ),
    "seed_oss": Case(
        "{%- set end = '</seed:think>' %}" + ASK + "<seed:bos>assistant\n",
        ("<seed:think>", "</seed:think>", "<seed:eos>", "<seed:bos>"),
        "<seed:think>{}</seed:think>{answer}<seed:eos>",
        *("seed_oss", "</seed:think>", f"</seed:think>\n{HEAD}", "", "<seed:think>"),
    ),
    "command_a": Case(
        ASK + "{% if messages[1] %}<|START_THINKING|><|END_THINKING|><|START_RESPONSE|>{% endif %}"
        "<|CHATBOT_TOKEN|>",
        (
            "<|START_THINKING|>",
            "<|END_THINKING|>",
            "<|START_RESPONSE|>",
            "<|END_RESPONSE|>",
            "<|CHATBOT_TOKEN|>",
        ),
        "<|START_THINKING|>{}<|END_THINKING|><|START_RESPONSE|>{answer}<|END_RESPONSE|>",
        *(
            "cohere",
            "<|END_THINKING|>",
            f"<|END_THINKING|><|START_RESPONSE|>{HEAD}",
            "",
            "<|START_THINKING|>",
        ),
    ),
    "north": Case(
        ASK + "{% if messages[1] %}<|START_TEXT|>{% endif %}<|START_THINKING|>",
        ("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        "{}<|END_THINKING|><|START_TEXT|>{answer}<|END_TEXT|>",
        *("cohere_text", "<|END_THINKING|>", f"<|END_THINKING|><|START_TEXT|>{HEAD}", OPENED),
    ),
}


@pytest.fixture(scope="module")
def grader():
    grader = Grader(processes=1)
    yield grader
    grader.close()


@pytest.mark.parametrize("model", CASES)
def test_a_family_by_hand(model, grader):
    case = CASES[model]
    tokenizer = tokenizer_of(*WORDS, special=case.special, template=case.template)
    config, (message,) = resolve_thought(SwapConfig(step_tokens=6), tokenizer)
    assert (config.end_of_thought, config.close_template) == (case.end, case.close)
    assert f"({case.family}{case.note}); answers are scored after {case.close!r}" in message

    response = case.response.format(THOUGHT, answer=r"\boxed{12}")
    ids = tokenizer(response, add_special_tokens=False)["input_ids"]
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    opening = len(tokenizer(case.first, add_special_tokens=False)["input_ids"]) if case.first else 0
    assert (reader.thought_length(ids), reader.reasoning_length(ids)) == (
        opening + 18,
        opening + 18,
    )
    ends = reader.step_ends(ids)
    assert ends == [opening + 5, opening + 17]
    assert reader.step_texts(ids, ends) == [case.first + STEPS[0], STEPS[1]]

    branch = answer_branch(tokenizer, config.close_template, "$12$")
    assert tokenizer.decode(branch.ids) == case.close + "12"
    assert branch.scored == (False,) * (len(branch.ids) - 2) + (True, True)

    unfinished = tokenizer(case.first + "3+4=7\n7+", add_special_tokens=False)["input_ids"]
    assert reader.thought_length(unfinished) is None
    assert reader.reasoning_length(unfinished) == len(unfinished)

    # The thought names 11, the answer 12; without a box the tokens around the answer are left out.
    assert grader.grade(response, "12", case.end).correct
    assert not grader.grade(response, "11", case.end).correct
    assert grader.grade(case.response.format("West", answer="East"), "East", case.end).correct


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("deepseek_r1", deepseek),
        ("qwen3.5", qwen3_5),
        pytest.param(
            "gpt_oss",
            gpt_oss,
            marks=pytest.mark.skipif(
                "O200K_BASE" not in os.environ, reason="O200K_BASE names no o200k_base.tiktoken"
            ),
        ),
    ],
)
def test_a_family_with_its_real_tokenizer(model, load, grader):
    """Here tokens merge neighbouring characters, such as `?` and the newline after it."""
    case, tokenizer = CASES[model], load()
    tokenizer.chat_template = case.template
    config, _ = resolve_thought(SwapConfig(step_tokens=6), tokenizer)
    assert (config.end_of_thought, config.close_template) == (case.end, case.close)

    ids = tokenizer(case.response.format(THOUGHT, answer=r"\boxed{12}"), add_special_tokens=False)[
        "input_ids"
    ]
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    thought = ids[: reader.thought_length(ids)]
    assert tokenizer.decode(thought) == case.first + THOUGHT and reader.reasoning_length(
        ids
    ) == len(thought)
    assert len(thought) < len(case.first + THOUGHT)
    assert reader.step_texts(ids, reader.step_ends(ids)) == [case.first + STEPS[0], STEPS[1]]
    assert reader.thought_length(thought) is None

    branch = answer_branch(tokenizer, config.close_template, "$12$")
    assert tokenizer.decode(branch.ids) == case.close + "12"
    scored = [number for number, counts in zip(branch.ids, branch.scored, strict=True) if counts]
    assert tokenizer.decode(scored) == "12"


def test_an_end_that_the_tokenizer_does_not_know_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"--swap.end_of_thought is '◁end', which the model's tokenizer decodes as",
    ):
        resolve_thought(SwapConfig(end_of_thought="◁end"), tokenizer_of())


@pytest.fixture
def letters():
    """A tokenizer of letters that begins a text with `^`, as many do with their own token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("^abc\n<>")}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="^")


def test_a_template_replaces_the_tokenizers_own_special_tokens(letters):
    assert letters.decode(prompt_ids(letters, "ab")) == "^ab\n"
    letters.chat_template = "{{ bos_token }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert (
        letters.decode(prompt_ids(letters, "ab")) == "^<ab>"
    )  # one token at the beginning, not two
    letters.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert letters.decode(prompt_ids(letters, "ab")) == "<ab>"
