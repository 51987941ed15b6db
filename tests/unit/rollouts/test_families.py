"""Problems as prompts; each family's thought, steps, branch and grade, by hand."""

import json
import os
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import pytest
from support.tokenizers import deepseek, gpt_oss, qwen3_5, tokenizer_of
from transformers import AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from openrlhf_swap import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.registry import OBJECTIVES, build
from openrlhf_swap.rewards.graded_text import NO_MARK, text_to_grade
from openrlhf_swap.rollouts.families import (
    prompt_ids,
    prompt_text,
    resolve_thought,
    set_template_arguments,
)
from openrlhf_swap.rollouts.reader import StepReader, is_formatted
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
    special: str  # tokens, between spaces
    response: str
    family: str
    end: str
    close: str
    opened: bool = False  # the chat template opens the thought
    first: str = ""  # what stands in the first step before the thought


R1 = partial(Case, family="r1", end="</think>", close=f"\n</think>\n\n{HEAD}")
OF_R1 = "{}</think>\n\n{answer}"
FINAL = "<|end|><|start|>assistant<|channel|>final<|message|>"
ANALYSIS = "<|channel|>analysis<|message|>"
TEXT = "<|END_THINKING|><|START_TEXT|>"
RESPONSE = "<|END_THINKING|><|START_RESPONSE|>"
CASES = {
    "deepseek_r1": R1(
        ASK + "{{'<\uff5cAssistant\uff5c><think>\\n'}}",
        "<think> </think> <\uff5cend▁of▁sentence\uff5c>",
        OF_R1 + "<\uff5cend▁of▁sentence\uff5c>",
        opened=True,
    ),
    "qwen3": R1(
        "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') if message %}"
        + ASK
        + "ASSISTANT\n",
        "<think> </think> <|im_end|>",
        "<think>\n" + OF_R1 + "<|im_end|>",
        first="<think>\n",
    ),
    "qwen3.5": R1(
        ASK + "{% if enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
        "{% else %}<think>\n{% endif %}",
        "<think> </think> <|im_end|>",
        OF_R1 + "<|im_end|>",
        opened=True,
    ),
    "glm": R1(
        ASK + "{% if messages[1] %}{{- '<think></think>' -}}{% endif %}<|assistant|>",
        "<think> </think> <|user|> <|assistant|>",
        "<think>{}</think>\n{answer}<|user|>",
        first="<think>",
    ),
    "gpt_oss": Case(
        ASK
        + "{% if messages[1] %}{{- '<|start|>assistant<|channel|>final<|message|>' }}{% endif %}"
        "<|start|>assistant",
        "<|start|> <|end|> <|channel|> <|message|> <|return|>",
        ANALYSIS + "{}" + FINAL + "{answer}<|return|>",
        family="gpt_oss",
        end=FINAL,
        close=FINAL + HEAD,
        first=ANALYSIS,
    ),
    "gemma4": Case(
        ASK + "<|turn>model\n"
        "{% if messages[1] %}{{- '<|channel>thought\\n' + thought + '<channel|>' -}}{% endif %}",
        "<|channel> <channel|> <turn|> <|turn>",
        "<|channel>thought\n{}<channel|>{answer}<turn|>",
        family="gemma4",
        end="<channel|>",
        close=f"\n<channel|>{HEAD}",
        first="<|channel>thought\n",
    ),
    "magistral": Case(
        "First [THINK]think[/THINK], then answer.{{ '[INST]' + messages[0].content + '[/INST]' }}",
        "[THINK] [/THINK] [INST] [/INST] </s>",
        "[THINK]{}[/THINK]{answer}</s>",
        family="mistral",
        end="[/THINK]",
        close=f"[/THINK]{HEAD}",
        first="[THINK]",
    ),
    "kimi_vl": Case(
        ASK + "<|im_assistant|>{{ '◁think▷' }}",
        "◁think▷ ◁/think▷ <|im_end|> <|im_assistant|>",
        "{}◁/think▷{answer}<|im_end|>",
        family="kimi_vl",
        end="◁/think▷",
        close=f"\n◁/think▷\n\n{HEAD}",
        opened=True,
    ),
    "seed_oss": Case(
        "{%- set end = '</seed:think>' %}" + ASK + "<seed:bos>assistant\n",
        "<seed:think> </seed:think> <seed:eos> <seed:bos>",
        "<seed:think>{}</seed:think>{answer}<seed:eos>",
        family="seed_oss",
        end="</seed:think>",
        close=f"</seed:think>\n{HEAD}",
        first="<seed:think>",
    ),
    "command_a": Case(
        ASK + "{% if messages[1] %}<|START_THINKING|>" + RESPONSE + "{% endif %}<|CHATBOT_TOKEN|>",
        "<|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|> <|CHATBOT_TOKEN|>",
        "<|START_THINKING|>{}" + RESPONSE + "{answer}<|END_RESPONSE|>",
        family="cohere",
        end="<|END_THINKING|>",
        close=RESPONSE + HEAD,
        first="<|START_THINKING|>",
    ),
    "north": Case(
        ASK + "{% if messages[1] %}<|START_TEXT|>{% endif %}<|START_THINKING|>",
        "<|START_THINKING|> <|END_THINKING|> <|START_TEXT|> <|END_TEXT|>",
        "{}" + TEXT + "{answer}<|END_TEXT|>",
        family="cohere_text",
        end="<|END_THINKING|>",
        close=TEXT + HEAD,
        opened=True,
    ),
}


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("model", CASES)
def test_a_family_by_hand(model, grader):
    case = CASES[model]
    special = tuple(case.special.split(" "))
    tokenizer = tokenizer_of(*WORDS, special=special, template=case.template)
    config, (message,) = resolve_thought(SwapConfig(step_tokens=6), tokenizer)
    assert config.end_of_thought == case.end
    assert config.close_template == case.close
    note = ", opened by the chat template" if case.opened else ""
    assert f"({case.family}{note}); answers are scored after {case.close!r}" in message

    response = case.response.format(THOUGHT, answer=r"\boxed{12}")
    ids = ids_of(tokenizer, response)
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    opening = len(ids_of(tokenizer, case.first)) if case.first else 0
    assert reader.thought_length(ids) == reader.reasoning_length(ids) == opening + 18
    ends = reader.step_ends(ids)
    assert ends == [opening + 5, opening + 17]
    assert reader.step_texts(ids, ends) == [case.first + STEPS[0], STEPS[1]]

    branch = answer_branch(tokenizer, config.close_template, "$12$")
    assert tokenizer.decode(branch.ids) == case.close + "12"
    *template, first, second = branch.scored
    assert not any(template)
    assert first
    assert second

    unfinished = ids_of(tokenizer, case.first + "3+4=7\n7+")
    assert reader.thought_length(unfinished) is None
    assert reader.reasoning_length(unfinished) == len(unfinished)

    # The thought names 11, the answer 12; without a box the tokens around the answer are left out.
    assert grader.grade(response, "12", case.end).correct
    assert not grader.grade(response, "11", case.end).correct
    assert grader.grade(case.response.format("West", answer="East"), "East", case.end).correct


def test_a_model_without_marks_by_hand(grader, tmp_path):
    """Its end token is the one that generation_config.json names beside the tokenizer's own."""
    special = ("<eos>", "<end_of_turn>")
    tokenizer = tokenizer_of(*WORDS, special=special, template=ASK + "ASSISTANT\n", eos="<eos>")
    tokenizer.save_pretrained(tmp_path)
    end_of_turn = tokenizer.convert_tokens_to_ids("<end_of_turn>")
    both = [tokenizer.eos_token_id, end_of_turn]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": both}))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    config, (message,) = resolve_thought(SwapConfig(step_tokens=6), tokenizer)
    assert config.start_of_thought == config.end_of_thought == NO_MARK
    assert config.close_template == "\n\nThe final answer is $\\boxed{"
    assert "without marks (plain: the chat template has none)" in message

    response = THOUGHT + "The answer is \\boxed{12}."
    ids = ids_of(tokenizer, response + "<end_of_turn>")
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    assert reader.without_end(ids) == ids[:-1]
    assert reader.thought_length(ids) is None
    assert reader.is_closed(ids)
    assert is_formatted(ids, reader)
    assert not is_formatted(ids_of(tokenizer, "The answer is 12."), reader)
    assert reader.reasoning_length(ids) == len(THOUGHT)
    assert reader.step_texts(ids, reader.step_ends(ids)) == STEPS
    unfinished = ids_of(tokenizer, "3+4=7\n7+<end_of_turn>")
    assert reader.reasoning_length(unfinished) == len(unfinished) - 1

    text = text_to_grade(prompt_text(tokenizer, "?"), response + "<end_of_turn>", NO_MARK)
    assert grader.grade(text, "12", NO_MARK).correct
    assert not grader.grade(text, "11", NO_MARK).correct
    assert not grader.grade(THOUGHT + "It gives 12", "12", NO_MARK).correct  # a number in a thought


def test_a_given_mark_counts_where_the_chat_template_has_none():
    tokenizer = tokenizer_of(special=("</think>",), template=ASK)
    config, (message,) = resolve_thought(SwapConfig(end_of_thought="</think>"), tokenizer)
    assert config.start_of_thought == "<think>"
    assert config.close_template == f"\n</think>\n\n{HEAD}"
    assert "'<think>' to '</think>' (r1)" in message


def test_a_model_whose_template_has_marks_can_be_read_without():
    tokenizer = tokenizer_of(special=("<think>", "</think>"), template=ASK + "<think>\n")
    config, messages = resolve_thought(SwapConfig(end_of_thought=NO_MARK), tokenizer)
    assert config.start_of_thought == NO_MARK
    assert "without marks (plain: as given)" in messages[0]
    assert "the chat template closes a thought with '</think>'" in messages[1]


@pytest.mark.parametrize("name", OBJECTIVES)
def test_an_objective_that_needs_marks_says_so(name):
    needing = {"acoer", "adaptthink", "autothink", "hbpo", "lc_r1", "saber", "thinkless", "vsrm"}
    config = SwapConfig(objective=name, end_of_thought=NO_MARK)
    if name not in needing:
        assert build(config).name == name
        return
    with pytest.raises(ConfigError, match=f"--swap.objective is {name}, which needs the marks"):
        build(config)


NO_O200K = pytest.mark.skipif("O200K_BASE" not in os.environ, reason="no o200k_base.tiktoken")


@pytest.mark.parametrize(
    ("model", "load"),
    [
        ("deepseek_r1", deepseek),
        ("qwen3.5", qwen3_5),
        pytest.param("gpt_oss", gpt_oss, marks=NO_O200K),
    ],
)
def test_a_family_with_its_real_tokenizer(model, load):
    """Here tokens merge neighbouring characters, such as `?` and the newline after it."""
    case = CASES[model]
    tokenizer = load()
    tokenizer.chat_template = case.template
    config, _ = resolve_thought(SwapConfig(step_tokens=6), tokenizer)
    assert config.end_of_thought == case.end
    assert config.close_template == case.close

    ids = ids_of(tokenizer, case.response.format(THOUGHT, answer=r"\boxed{12}"))
    reader = StepReader(tokenizer, config.end_of_thought, *config.segmentation)
    thought = ids[: reader.thought_length(ids)]
    assert tokenizer.decode(thought) == case.first + THOUGHT
    assert reader.reasoning_length(ids) == len(thought) < len(case.first + THOUGHT)
    assert reader.step_texts(ids, reader.step_ends(ids)) == [case.first + STEPS[0], STEPS[1]]

    branch = answer_branch(tokenizer, config.close_template, "$12$")
    assert tokenizer.decode(branch.ids) == case.close + "12"
    scored = [number for number, counts in zip(branch.ids, branch.scored, strict=True) if counts]
    assert tokenizer.decode(scored) == "12"


def test_an_end_that_the_tokenizer_does_not_know_is_refused():
    message = r"--swap.end_of_thought is '◁end', which the model's tokenizer decodes as"
    with pytest.raises(ConfigError, match=message):
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
    # One token at the beginning, not two.
    assert letters.decode(prompt_ids(letters, "ab")) == "^<ab>"
    letters.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert letters.decode(prompt_ids(letters, "ab")) == "<ab>"


def test_a_problem_has_one_prompt_on_every_day(letters, monkeypatch):
    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2099, 1, 1)

    letters.chat_template = (
        "{% set day = strftime_now('%d %b %Y') %}{{ day }}{% for m in messages %}"
        "<{{ m.content }}>{% endfor %}{{ more }}"
    )
    today = prompt_text(letters, "ab")
    monkeypatch.setattr(chat_template_utils, "datetime", Tomorrow)
    assert prompt_text(letters, "ab") == today == "01 Jan 2025<ab>"
    set_template_arguments(letters, '{"more": "c"}')  # OpenRLHF calls the tokenizer itself
    chat = [{"role": "user", "content": "ab"}]
    assert letters.apply_chat_template(chat, tokenize=False) == "01 Jan 2025<ab>c"
