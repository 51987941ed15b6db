"""Formulas in a model's text."""

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_swap.evaluation.page.formulas import (
    ATTRIBUTES,
    FORMULA,
    TAGS,
    split_formulas,
    to_tree,
)


def parts(text):
    """The text split, and the trees of its formulas."""
    formulas = {}
    return split_formulas(text, formulas), formulas


@pytest.mark.parametrize(
    ("text", "formulas"),
    [
        ("so $x$ and \\(y\\).", ["$x$", "\\(y\\)"]),
        ("then \\[\nx^2\n\\] and $$y$$", ["\\[\nx^2\n\\]", "$$y$$"]),
        ("it is \\boxed{\\frac{1}{2}}", ["\\boxed{\\frac{1}{2}}"]),
        (
            "\\[ \\begin{aligned}a&=b\\\\[4pt]c&=d\\end{aligned} \\]",
            1,
        ),  # \\[ breaks a line, it opens nothing
        ("$5 and $6 or $7.", []),
        ("$5,$6 or $7.", []),
        ("\\$5 and $x$, then $", ["$x$"]),
        ("\\(a \\(b\\) c", ["\\(b\\)"]),
        ("\\(a\n\nb\\)", []),  # a formula ends with its paragraph
        ("\\boxed{x", []),
        ("$\\foo{x}$ $x^{2$ $\\frac{1}$", []),
    ],
)
def test_what_is_a_formula(text, formulas):
    split, trees = parts(text)
    assert "".join(split) == text and len(split) % 2 == 1
    assert split[1::2] == formulas or len(split) // 2 == formulas
    assert set(split[1::2]) == set(trees)


def test_a_fraction_as_a_tree():
    inner = ["mfrac", ["mrow", ["mn", "1"]], ["mrow", ["mi", "x"]]]
    assert to_tree(r"\frac{1}{x}", False) == ["math", {"display": "inline"}, ["mrow", inner]]
    assert to_tree("a<b", True) == [
        "math",
        {"display": "block"},
        ["mrow", ["mi", "a"], ["mo", "<"], ["mi", "b"]],
    ]
    boxed = to_tree(r"\boxed{x}", False)
    assert boxed[2][1][:2] == ["mrow", {"class": "boxed"}]


def test_a_formula_cannot_do_more_than_be_one():
    source = r"\href{javascript:alert(1)}{x} \style{color:red}{y} \class{z}{w} \color{red}v \text{<script>}"
    text = json.dumps(to_tree(source, False))
    assert "javascript" not in text and "red" not in text and "class" not in text
    assert '["mtext", "<script>"]' in text  # a text node


PIECES = [
    "$",
    "\\(",
    "\\)",
    "\\[",
    "\\]",
    "{",
    "}",
    "\\frac",
    "\\left(",
    "^",
    "_",
    "&",
    "\\\\",
    "\n\n",
    "x",
    "1",
    " ",
]
PIECES += [
    "\\begin{array}",
    "\\end{array}",
    "\\boxed{",
    "\\genfrac",
    "\\limits",
    "\\style",
    "\\hspace",
    "<b>",
    "%",
]


def allowed(tree):
    tag, *rest = tree
    attributes = rest[0] if rest and isinstance(rest[0], dict) else {}
    inside = all(isinstance(part, (str, dict)) or allowed(part) for part in rest)
    return (
        tag in TAGS and (attributes.keys() <= ATTRIBUTES or set(attributes) == {"class"}) and inside
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join))
def test_any_text_is_split_and_stays_itself(text):
    split, trees = parts(text)
    assert "".join(split) == text
    assert all(allowed(tree) for tree in trees.values())
    assert all(FORMULA.fullmatch(source) for source in trees)


def test_what_never_closes_costs_little():
    start = time.process_time()
    for text in ("\\[", "$", "\\(", "\\boxed{", "$a", "\\boxed{{", "{}\\boxed{{}"):
        parts(text * 20_000)
    assert to_tree("{" * 5000 + "}" * 5000, False) is None
    assert time.process_time() - start < 5
