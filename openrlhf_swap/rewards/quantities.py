r"""What an answer says: values, and the words that stand beside them.

`read` splits `2\text{ hours }15\text{ minutes}` into the values 2 and 15 and the words "hour" and
"minute". Nothing is dropped here. The tables of `forms.yaml` say which words mean the same, and
which may be missing on one side: units, and the names of what is counted.
"""

import re
from typing import NamedTuple

from openrlhf_swap.rewards.forms import canonical, look_up, words

UNITS = look_up("units")
_CURRENCY = "|".join(words("currencies"))
_NOT_WORDS = "|".join(words("functions"))
# In \text, of four letters and more, the short ones of the table, and those in other letters.
_WORDS = re.compile(
    r"\\text ?\{(?P<text>(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}"
    rf"|(?<![\\A-Za-z_{{])(?!(?:{_NOT_WORDS})(?![A-Za-z]))(?:[A-Za-z]{{4,}}|{'|'.join(words('short'))})"
    r"(?:/[A-Za-z]+)?(?![A-Za-z(])|(?<![A-Za-z])(?:and|or)(?=\()|in (?:total|all)\b"
    r"|(?<=[\d ])[ap]\.m|[€£¥₹₩₽]|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]+"
    r"|[^\W\d_\u0370-\u9fff]*[^\W\d_A-Za-z\u0370-\u03ff\u3040-\ud7af][^\W\d_]*"
)
_IN_TEXT = re.compile(r"[^\W\d_][^\s\d=+<>,;(){}^\\$|!]*|/|[€£¥₹₩₽]")
_POWER = re.compile(r"⟧ *\^ ?\{?([23])\}?")
_MONEY_BEFORE = re.compile(rf"(?:^|(?<=[-+(\[=,;<> ]))⟦({_CURRENCY})⟧ ?([^⟦⟧,;()]+)")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne)(?![A-Za-z])")


class Quantity(NamedTuple):
    """A value as mathematics, and the words beside it in one spelling; each may be empty."""

    value: str
    words: str


def read(text: str) -> list[Quantity]:
    """The quantities of an answer, in order; "and" and "or" between values are commas."""
    plain = canonical(text)
    marked = _WORDS.sub(_marked_text, plain)
    is_relation = _RELATION.search(plain)
    for word in words("connectives"):
        sign = r"\land " if word in ("and", "且", "和") else r"\lor "
        marked = marked.replace(f"⟦{word}⟧", sign if is_relation else ", ")
    marked = re.sub("⟧ *⟦", " ", marked)
    marked = re.sub("⟦([^⟧]*)⟧", _named, marked)
    marked = _MONEY_BEFORE.sub(r"\2⟦\1⟧", _POWER.sub(r"^\1⟧", marked))
    parts = [part.strip() for part in re.split("[⟦⟧]", marked)]
    quantities = [Quantity(*pair) for pair in zip(parts[::2], [*parts[1::2], ""], strict=True)]
    return [quantity for quantity in quantities if any(quantity)] or quantities


def _marked_text(match: re.Match[str]) -> str:
    inside = match["text"]
    if inside is None:
        inside = match[0]
    inside = re.sub(r"\\text|[{}]", " ", inside)
    return _IN_TEXT.sub(lambda word: f"⟦{word[0]}⟧", inside)


def _named(match: re.Match[str]) -> str:
    named = name_words(match[1])
    return f"⟦{named}⟧" if named else " "


def name_words(text: str) -> str:
    """Words in one spelling: small letters, the names of units, "cm^2" and "km/hour"."""
    if text.strip(" .").lower() == "in":
        return "inch"
    text = text.replace("平方", "square ").replace("立方", "cubic ")
    names = []
    for word in text.replace(" per ", " / ").replace("/", " / ").split():
        name = word.strip(".")
        if len(name) > 1:  # N is a newton, and n is none
            name = name.casefold()
        if name not in words("aside"):
            names.append(UNITS.get(name) or UNITS.get(name.removesuffix("s")) or name)
    named = " ".join(names).replace(" / ", "/")
    named = re.sub(r"\b(?:square|sq) (\w+)|\b(\w+) squared\b", r"\1\2^2", named)
    return re.sub(r"\bcubic (\w+)", r"\1^3", named)


def may_be_missing(text: str) -> bool:
    """Whether the words are a unit or what is counted, which the other answer may leave out."""
    names = [name for name in re.split(r"[ /]|\^\d", text) if name]
    return bool(names) and all(map(_is_counted, names))


def _is_counted(name: str) -> bool:
    if name in UNITS or name in words("counted"):
        return True
    if not name.isascii():
        return name[0] in words("counted")  # 个苹果
    is_plural = name.endswith("s") and not name.endswith(("ss", "us", "is"))
    return is_plural and len(name) > 3 and name not in words("not_counted")
