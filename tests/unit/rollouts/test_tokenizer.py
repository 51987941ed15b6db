"""Problems as prompts, with and without a chat template."""

import pytest

from openrlhf_swap.rollouts.tokenizer import prompt_ids


@pytest.fixture
def letters():
    """A tokenizer of letters that begins a text with `^`, as many do with their own token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("^abc\n<>")}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    backend.decoder = decoders.Fuse()
    backend.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="^")


def test_without_a_template_a_problem_begins_as_any_text(letters):
    assert letters.decode(prompt_ids(letters, "ab")) == "^ab\n"


def test_a_template_replaces_the_tokenizers_own_special_tokens(letters):
    letters.chat_template = "{{ bos_token }}{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert letters.decode(prompt_ids(letters, "ab")) == "^<ab>"  # one token at the beginning, not two
    letters.chat_template = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
    assert letters.decode(prompt_ids(letters, "ab")) == "<ab>"


def test_the_embedded_policy_is_asked_as_in_its_training(tokenizer):
    rendered = tokenizer.decode(prompt_ids(tokenizer, "What is 123 + 456?"))
    assert rendered == "<|user|>What is 123 + 456?<|assistant|><think>\n"
