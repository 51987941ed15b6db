r"""Formulas in a model's text, as trees of MathML that a page builds element by element: nothing in them is markup.

A formula stands between $ and $, $$ and $$, \( and \), \[ and \], or is a \boxed{...}. What cannot be read stays text.
"""

from __future__ import annotations

import html
import re
from collections.abc import MutableMapping
from functools import cache
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml import exceptions
from latex2mathml.converter import convert_to_element

Tree = list[Any]  # [tag, attributes if it has any, children and texts ...]

LONGEST = 1500  # characters; a bound on what a formula that never closes costs
DEEPEST = 60  # elements inside each other
# Each with the number of elements that it must have, None for any.
TAGS: dict[str, int | None] = {
    **dict.fromkeys(("math", "mi", "mn", "mo", "mpadded", "mrow", "mspace", "msqrt", "mstyle", "mtext")),
    **dict.fromkeys(("mtable", "mtr", "mtd")),
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
# Those that browsers know and that cannot do more than set a formula.
ATTRIBUTES = {
    *("accent", "columnalign", "display", "displaystyle", "fence", "form", "largeop", "linethickness", "mathvariant"),
    *("maxsize", "minsize", "movablelimits", "scriptlevel", "stretchy", "width"),
}
# What latex2mathml raises: errors of its own, and what its walk over LaTeX without sense runs into.
UNREADABLE: tuple[type[Exception], ...] = (
    *(error for error in vars(exceptions).values() if isinstance(error, type) and issubclass(error, Exception)),
    *(AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError),
)

_INSIDE = rf"(?:(?!\n\s*\n|(?<!\\)\\[\[(]).){{1,{LONGEST}}}?"  # neither a paragraph's end nor another formula's start
_BRACES = r"[^{}]*"
for _ in range(5):
    _BRACES = rf"(?:[^{{}}]|\{{{_BRACES}\}}){{0,{LONGEST}}}"
# Of single $ by pandoc's rule: no formula is in "$5 and $6".
FORMULA = re.compile(
    rf"(?<!\\)(?:\\\[(?P<display>{_INSIDE})\\\]|\$\$(?P<centred>[^$]{{1,{LONGEST}}})\$\$|\\\((?P<inline>{_INSIDE})\\\)"
    rf"|\$(?P<dollar>(?![\s$])[^$\n]{{1,{LONGEST}}}(?<![\s\\]))\$(?![\d$])|(?P<boxed>\\boxed\{{{_BRACES}\}}))",
    re.DOTALL,
)


def split_formulas(text: str, formulas: MutableMapping[str, Tree]) -> list[str]:
    """Texts and formulas in turn, a text first and last; joined they are `text` again.

    Args:
        text: a model's.
        formulas: gets the tree of each formula, by the formula's source with its delimiters.
    """
    parts, end = [""], 0
    for match in FORMULA.finditer(text):
        kind = str(match.lastgroup)
        tree = to_tree(match[kind], kind in ("display", "centred"))
        parts[-1] += text[end : match.start()]
        end = match.end()
        if tree is None:
            parts[-1] += match[0]
        else:
            formulas[match[0]] = tree
            parts += [match[0], ""]
    parts[-1] += text[end:]
    return parts


@cache
def to_tree(latex: str, display: bool) -> Tree | None:
    """A formula as a tree, set in a line of its own or not; None for LaTeX that cannot be read."""
    if latex.count("{") - latex.count(r"\{") != latex.count("}") - latex.count(r"\}"):
        return None
    known = latex.replace("{aligned}", "{align*}").replace("{gathered}", "{align*}")
    try:
        return _tree(convert_to_element(known, display="block" if display else "inline"), 0)
    except UNREADABLE:
        return None


def _tree(element: Element, depth: int) -> Tree:
    """An element without what a page should not have; ValueError for a command that is not known or lacks a part."""
    text = html.unescape(element.text or "")
    if depth > DEEPEST or re.match(r"\\[a-zA-Z]", text):
        raise ValueError(text)
    tag = element.tag
    attributes = {name: value for name, value in element.attrib.items() if name in ATTRIBUTES}
    if tag == "menclose":  # which no browser but Firefox draws
        tag, attributes = "mrow", {"class": "boxed" if element.get("notation") == "box" else "struck"}
    if tag not in TAGS or TAGS[tag] not in (None, len(element)):
        raise ValueError(tag)
    return [tag, *filter(None, [attributes, text]), *(_tree(child, depth + 1) for child in element)]
