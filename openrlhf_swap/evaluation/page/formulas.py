r"""Formulas in a model's text, as MathML trees that the page builds element by element, so none of
the text is markup.

A formula is enclosed in $, $$, \( \) or \[ \], or is a \boxed{...}. What cannot be parsed stays
text.
"""

import html
import re
from collections.abc import MutableMapping
from functools import cache
from typing import Any
from xml.etree.ElementTree import Element

from latex2mathml import exceptions
from latex2mathml.converter import convert_to_element

Tree = list[Any]  # [tag, attributes if any, children and texts ...]

LONGEST = 1500  # characters; bounds the cost of a formula that never closes
DEEPEST = 60  # nested elements
# Allowed tags and their required number of children, None for any.
TAGS: dict[str, int | None] = {
    **dict.fromkeys(
        ("math", "mi", "mn", "mo", "mpadded", "mrow", "mspace", "msqrt", "mstyle", "mtext")
    ),
    **dict.fromkeys(("mtable", "mtr", "mtd")),
    **dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2),
    **dict.fromkeys(("msubsup", "munderover"), 3),
}
# Allowed attributes: browsers know them, and they can only affect typesetting.
ATTRIBUTES = {
    *(
        "accent",
        "columnalign",
        "display",
        "displaystyle",
        "fence",
        "form",
        "largeop",
        "linethickness",
        "mathvariant",
    ),
    *("maxsize", "minsize", "movablelimits", "scriptlevel", "stretchy", "width"),
}
# What latex2mathml raises: its own errors, and those it hits on malformed LaTeX.
UNREADABLE: tuple[type[Exception], ...] = (
    *(
        error
        for error in vars(exceptions).values()
        if isinstance(error, type) and issubclass(error, Exception)
    ),
    *(AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError),
)

_INSIDE = rf"(?:(?!\n\s*\n|(?<!\\)\\[\[(]).){{1,{LONGEST}}}?"  # no end of a paragraph, no start of another formula
_BRACES = r"[^{}]*"
for _ in range(5):
    _BRACES = rf"(?:[^{{}}]|\{{{_BRACES}\}}){{0,{LONGEST}}}"
# Single $ follow pandoc's rule: "$5 and $6" holds no formula.
FORMULA = re.compile(
    rf"(?<!\\)(?:\\\[(?P<display>{_INSIDE})\\\]|\$\$(?P<centred>[^$]{{1,{LONGEST}}})\$\$|\\\((?P<inline>{_INSIDE})\\\)"
    rf"|\$(?P<dollar>(?![\s$])[^$\n]{{1,{LONGEST}}}(?<![\s\\]))\$(?![\d$])|(?P<boxed>\\boxed\{{{_BRACES}\}}))",
    re.DOTALL,
)


def split_formulas(text: str, formulas: MutableMapping[str, Tree]) -> list[str]:
    """Texts and formulas alternately, starting and ending with a text; joined they equal `text`.

    `formulas` receives the tree of each formula, keyed by its source with delimiters.
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
    """A formula as a tree, in display or inline style; None for LaTeX that cannot be parsed."""
    if latex.count("{") - latex.count(r"\{") != latex.count("}") - latex.count(r"\}"):
        return None
    known = latex.replace("{aligned}", "{align*}").replace("{gathered}", "{align*}")
    try:
        return _tree(convert_to_element(known, display="block" if display else "inline"), 0)
    except UNREADABLE:
        return None


def _tree(element: Element, depth: int) -> Tree:
    """A sanitised element as a tree; ValueError for an unknown command, or one that lacks an
    argument.
    """
    text = html.unescape(element.text or "")
    if depth > DEEPEST or re.match(r"\\[a-zA-Z]", text):
        raise ValueError(text)
    tag = element.tag
    attributes = {name: value for name, value in element.attrib.items() if name in ATTRIBUTES}
    if tag == "menclose":  # only Firefox draws it
        tag, attributes = (
            "mrow",
            {"class": "boxed" if element.get("notation") == "box" else "struck"},
        )
    if tag not in TAGS or TAGS[tag] not in (None, len(element)):
        raise ValueError(tag)
    return [tag, *filter(None, [attributes, text]), *(_tree(child, depth + 1) for child in element)]
