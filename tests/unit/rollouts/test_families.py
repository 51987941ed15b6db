"""The marks of families, on the part of their chat templates that has them."""

import pytest

from openrlhf_swap.rollouts.families import R1, family_of, unread_marks

TEMPLATES = {
    "deepseek_r1": ("r1", "{{'<|Assistant|><think>\\n'}}"),
    "qwen3": ("r1", "{%- set content = message.content.split('</think>')[-1].lstrip('\\n') %}"),
    "smollm3": ("r1", '{{ "<|im_start|>assistant\\n" + "<think>\\n\\n</think>\\n" }}'),
    "nemotron": ("r1", "{{ '<|im_start|>assistant\\n<think>\\n' }}"),
    "glm": ("r1", "{{- '<think></think>' -}}"),
    "gpt_oss": ("gpt_oss", '{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}'),
    "gemma4": ("gemma4", "{{- '<|channel>thought\\n' + thought + '<channel|>' -}}"),
    "magistral": ("mistral", "{{ '[THINK]' + block['thinking'] + '[/THINK]' }}"),
    "kimi_vl": ("kimi", "{{ '◁think▷' }}"),
    "seed_oss": ("seed_oss", "{{ '<seed:think>' + message.reasoning_content + '</seed:think>' }}"),
    "command_a": ("cohere", "<|START_THINKING|>{{message.thinking}}<|END_THINKING|>"),
    "no_thought": ("r1", "{% for message in messages %}<|user|>{{ message.content }}{% endfor %}"),
}


@pytest.mark.parametrize("model", TEMPLATES)
def test_a_template_tells_its_family(model):
    name, template = TEMPLATES[model]
    assert family_of(template).name == name


def test_without_a_template_it_is_r1():
    assert family_of(None) is R1
    assert unread_marks(None) is None


@pytest.mark.parametrize("model", TEMPLATES)
def test_a_model_whose_marks_are_not_read_is_told(model):
    name, template = TEMPLATES[model]
    said = unread_marks(template)
    assert (said is None) == (name == "r1")
    assert said is None or f"({name}), but steps and answers are read up to and behind </think> only" in said
