"""Problems as prompts, with and without a chat template; and tokenizers that lose white space."""

import json

import pytest
from support.paths import POLICY
from support.pieces import tokenizer_of
from support.real_tokenizers import deepseek, qwen3_5
from transformers import AutoTokenizer, LlamaConfig, LlamaTokenizer, PreTrainedTokenizerFast

from openrlhf_swap import SwapConfig, sft
from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rollouts.families import check_white_space, prompt_ids, resolve_thought


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


@pytest.fixture
def llama_folder(tmp_path):
    """A Llama with a tokenizer of bytes, as DeepSeek-R1-Distill-Llama has, and the class that its settings name."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    characters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({character: number for number, character in enumerate(characters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    LlamaConfig().save_pretrained(tmp_path)

    def named(tokenizer_class):
        path = tmp_path / "tokenizer_config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": tokenizer_class}))
        return tmp_path

    return named


def test_a_tokenizer_that_loses_white_space_is_refused_with_a_remedy_that_works(llama_folder, capsys):
    folder = llama_folder("LlamaTokenizerFast")
    message = (
        f"the tokenizer of {folder} is loaded as LlamaTokenizer, which makes 'abc' of 'a b\\nc'; set "
        '"tokenizer_class": "PreTrainedTokenizerFast" in its tokenizer_config.json'
    )
    with pytest.raises(ConfigError) as refused:
        resolve_thought(SwapConfig(), AutoTokenizer.from_pretrained(folder))
    assert str(refused.value) == message
    # The command that does not look for the marks of thoughts.
    assert run_command(sft.main, ["--model.model_name_or_path", str(folder), "--data.dataset", "any"]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
    check_white_space(AutoTokenizer.from_pretrained(llama_folder("PreTrainedTokenizerFast")))


def with_metaspace():
    """A Llama 2's: a space is part of the word after it, and a newline is a byte."""
    marks = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    vocabulary = {token: number for number, token in enumerate([*marks, *"▁abc", "▁a", "▁b"])}
    return LlamaTokenizer(vocab=vocabulary, merges=[("▁", "a"), ("▁", "b")])


@pytest.mark.parametrize(
    "load",
    [
        *(lambda world=world: AutoTokenizer.from_pretrained(world) for world in sorted(POLICY.parent.iterdir())),
        *(deepseek, qwen3_5, with_metaspace, tokenizer_of),
    ],
)
def test_a_tokenizer_that_keeps_white_space_passes(load):
    check_white_space(load())
