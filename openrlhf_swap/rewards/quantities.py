r"""The words of an answer, which stand beside its values.

`mark_words` writes `2\text{ hours }15\text{ minutes}` as `2⟦hour⟧, 15⟦minute⟧`. Nothing is dropped
here. The tables of `forms.yaml` say which words mean the same, and which may be missing on one
side: units, and the names of what is counted.
"""

import re

from openrlhf_swap.rewards.forms import PATTERNS, look_up, words

UNITS = look_up("units")
_SIGNS = look_up("connectives")


def mark_words(text: str) -> str:
    """The text with its words in marks, in one spelling; "and" and "or" between values are commas.

    So are places where a value follows a word.
    """
    is_relation = PATTERNS.relation.search(text)
    signs = _SIGNS if is_relation else dict.fromkeys(_SIGNS, ", ")
    marked = PATTERNS.words.sub(_mark_text, text)
    marked = PATTERNS.mark.sub(lambda mark: signs.get(mark[1], mark[0]), marked)
    marked = re.sub("⟧ *⟦", " ", marked)
    marked = PATTERNS.mark.sub(lambda mark: f"⟦{name_words(mark[1])}⟧", marked)
    marked = PATTERNS.power.sub(r"^\1⟧", marked.replace("⟦⟧", " "))
    return PATTERNS.value_after.sub("⟧, ", PATTERNS.money_before.sub(r"\2⟦\1⟧", marked))


def split_words(text: str) -> tuple[str, set[str]]:
    """A marked text without its words, and the words."""
    return PATTERNS.mark.sub(" ", text).strip(), {*PATTERNS.mark.findall(text)}


def _mark_text(match: re.Match[str]) -> str:
    inside = match[0] if match["text"] is None else match["text"]
    inside = re.sub(r"\\text|[{}]", " ", inside)
    return PATTERNS.in_text.sub(r"⟦\g<0>⟧", inside)


def name_words(text: str) -> str:
    """Words in one spelling: small letters, the names of units, "cm^2" and "km/hour"."""
    names = []
    for word in text.replace("/", " / ").split():
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
    return all(map(_is_counted, re.findall(r"[^ /^\d]+", text)))


def _is_counted(name: str) -> bool:
    if name in UNITS or not {name, name[0]}.isdisjoint(words("counted")):  # 个苹果
        return True
    is_plural = re.fullmatch(r"\w{2,}(?<![sui])s", name)
    return is_plural is not None and name not in words("not_counted")
