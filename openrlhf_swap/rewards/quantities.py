r"""The words of an answer, which stand beside its values.

`mark_words` writes `2\text{ hours }15\text{ minutes}` as `2⟦hour⟧, 15⟦minute⟧`. Nothing is dropped
here. The tables of `forms.yaml` say which words mean the same, and which may be missing on one
side: units, and the names of what is counted.
"""

import re
from typing import NamedTuple

from openrlhf_swap.rewards.forms import PATTERNS, apply, compile_rows, look_up, words

UNITS = look_up("units")


def mark_words(text: str) -> str:
    """A canonical text with its words in marks, in one spelling.

    "and" and "or" between values become commas. A comma also comes before a value that follows a
    word.
    """
    return apply(_ROWS, text)


class Split(NamedTuple):
    """A text without its words, and the words."""

    plain: str
    words: set[str]


def split_words(text: str) -> Split:
    """A marked text, split into its values and its words."""
    plain = PATTERNS.mark.sub(" ", text)
    return Split(plain.strip(), set(PATTERNS.mark.findall(text)))


def may_be_missing(text: str) -> bool:
    """Whether the words are a unit or what is counted, which the other answer may leave out."""
    names = re.findall(r"[^ /^\d]+", text)
    return all(name in UNITS or PATTERNS.counted.fullmatch(name) for name in names)


def _marked(match: re.Match[str]) -> str:
    inside = re.sub(r"\\text|[{}]", " ", match[0])
    return PATTERNS.in_text.sub(r"⟦\g<0>⟧", inside)


def _named(match: re.Match[str]) -> str:
    """Words in one spelling: small letters, and the names of units."""
    names = []
    for word in match[1].split():
        name = word.strip(".")
        if len(name) > 1 and name not in UNITS:  # N is a newton, and n is none; MW is no mW
            name = name.casefold()
        if name not in words("aside"):
            singular = name.removesuffix("s")
            names.append(UNITS.get(name) or UNITS.get(singular) or name)
    return f"⟦{' '.join(names)}⟧"


def _renamed(match: re.Match[str]) -> str:
    return re.sub(rf"(?<![A-Za-z\\]){match[1]}(?![A-Za-z])", "k", match[0])


_ROWS = compile_rows("word_forms", marked=_marked, named=_named, renamed=_renamed)
