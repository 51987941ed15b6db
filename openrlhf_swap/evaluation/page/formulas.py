r"""Formulas in a model's text, as MathML trees that the page builds element by element.

None of the text is markup. A formula is enclosed in $, $$, \( \) or \[ \], or is a \boxed{...}.
What cannot be parsed stays text.
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

LONGEST_FORMULA = 1500  # characters; bounds the cost of a formula that never closes
DEEPEST_TREE = 60  # nested elements
# Allowed tags; some have a number of children that is required.
PLAIN = "math mi mn mo mpadded mrow mspace msqrt mstyle mtext mtable mtr mtd"
PAIRS = "mfrac mroot msub msup munder mover"
TRIPLES = "msubsup munderover"
CHILDREN = {
    **dict.fromkeys(PAIRS.split(), 2),
    **dict.fromkeys(TRIPLES.split(), 3),
}
TAGS = {*PLAIN.split(), *CHILDREN}
# Allowed attributes: browsers know them, and they can only affect typesetting.
TYPESETTING = (
    "accent columnalign display displaystyle fence form largeop linethickness mathvariant maxsize "
    "minsize movablelimits scriptlevel stretchy width"
)
ATTRIBUTES = set(TYPESETTING.split())
# What latex2mathml raises: its own errors, and the errors that malformed LaTeX causes in it.
OWN_ERRORS = [error for error in vars(exceptions).values() if isinstance(error, type)]
UNREADABLE: tuple[type[Exception], ...] = (
    *(error for error in OWN_ERRORS if issubclass(error, Exception)),
    AttributeError,
    LookupError,
    RecursionError,
    StopIteration,
    TypeError,
    ValueError,
)

# No end of a paragraph, and no start of another formula.
_INSIDE = rf"(?:(?!\n\s*\n|(?<!\\)\\[\[(]).){{1,{LONGEST_FORMULA}}}?"
_BRACES = r"[^{}]*"
for _ in range(5):
    _BRACES = rf"(?:[^{{}}]|\{{{_BRACES}\}}){{0,{LONGEST_FORMULA}}}"
# Single $ follow pandoc's rule: "$5 and $6" holds no formula.
_DOLLAR = rf"(?![\s$])[^$\n]{{1,{LONGEST_FORMULA}}}(?<![\s\\])"
FORMULA = re.compile(
    rf"(?<!\\)(?:\\\[(?P<display>{_INSIDE})\\\]"
    rf"|\$\$(?P<centred>[^$]{{1,{LONGEST_FORMULA}}})\$\$"
    rf"|\\\((?P<inline>{_INSIDE})\\\)"
    rf"|\$(?P<dollar>{_DOLLAR})\$(?![\d$])"
    rf"|(?P<boxed>\\boxed\{{{_BRACES}\}}))",
    re.DOTALL,
)


def split_formulas(text: str, formulas: MutableMapping[str, Tree]) -> list[str]:
    """The parts of a text: texts and formulas in turn, of which the first and the last are texts.

    A formula keeps its delimiters, and its tree is added to `formulas` by this source.
    """
    parts = [""]
    end = 0
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
    braces = re.findall(r"(?<!\\)[{}]", latex)
    if braces.count("{") != braces.count("}"):
        return None
    known = latex.replace("{aligned}", "{align*}").replace("{gathered}", "{align*}")
    style = "block" if display else "inline"
    try:
        return _tree(convert_to_element(known, display=style), 0)
    except UNREADABLE:
        return None


def _tree(element: Element, depth: int) -> Tree:
    """An element as a tree of allowed tags and attributes alone.

    Raises ValueError for an unknown command, or one that lacks an argument.
    """
    text = html.unescape(element.text or "")
    if depth > DEEPEST_TREE or re.match(r"\\[a-zA-Z]", text):
        raise ValueError(text)
    tag = element.tag
    attributes = {name: value for name, value in element.attrib.items() if name in ATTRIBUTES}
    if tag == "menclose":  # only Firefox draws it
        tag = "mrow"
        is_box = element.get("notation") == "box"
        attributes = {"class": "boxed" if is_box else "struck"}
    if tag not in TAGS or CHILDREN.get(tag, len(element)) != len(element):
        raise ValueError(tag)
    children = [_tree(child, depth + 1) for child in element]
    return [tag, *filter(None, [attributes, text]), *children]
