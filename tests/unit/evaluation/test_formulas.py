"""Formulas in a model's text."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from openrlhf_swap.evaluation.page import formulas
from openrlhf_swap.evaluation.page.formulas import split_formulas, to_tree


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("so $x$ and \\(y\\).", ["$x$", "\\(y\\)"]),
        ("then \\[\nx^2\n\\] and $$y$$", ["\\[\nx^2\n\\]", "$$y$$"]),
        ("it is \\boxed{\\frac{1}{2}}", ["\\boxed{\\frac{1}{2}}"]),
        ("$5 and $6 or $7, $5,$6.", []),
        ("\\$5 and $x$, then $", ["$x$"]),
        ("\\(a \\(b\\) c", ["\\(b\\)"]),
        ("\\(a\n\nb\\)", []),  # a formula ends with its paragraph
        ("$\\foo{x}$ $x^{2$ $\\frac{1}$ \\boxed{x", []),
    ],
)
def test_what_is_a_formula(text, expected):
    trees = {}
    split = split_formulas(text, trees)
    assert "".join(split) == text
    assert split[1::2] == expected
    assert set(trees) == set(expected)


def test_trees():
    one = ["mrow", ["mn", "1"]]
    x = ["mrow", ["mi", "x"]]
    inner = ["mrow", ["mfrac", one, x]]
    assert to_tree(r"\frac{1}{x}", False) == ["math", {"display": "inline"}, inner]
    _, _, row = to_tree(r"\boxed{x}", True)
    assert row[1][:2] == ["mrow", {"class": "boxed"}]
    aligned = r"\begin{aligned}a&=b\\[4pt]c&=d\end{aligned}"  # \\[ breaks a line, opens nothing
    assert len(split_formulas(f"\\[{aligned}\\]", {})) == 3


PIECES = r"""$ \( \) \[ \] { } \frac \left( ^ _ & \\ x 1 \begin{array} \end{array} \boxed{
\genfrac \limits \style \hspace \href \color <b> %"""


def check(tree):
    """A tree holds nothing but texts, known tags and known attributes."""
    tag, *rest = tree
    assert tag in formulas.TAGS
    for part in rest:
        if isinstance(part, dict):
            assert part.keys() <= {*formulas.ATTRIBUTES, "class"}
        elif isinstance(part, list):
            check(part)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([*PIECES.split(), " ", "\n\n"]), max_size=40).map("".join))
def test_any_text_is_split_and_stays_itself(text):
    trees = {}
    assert "".join(split_formulas(text, trees)) == text
    for source, tree in trees.items():
        assert formulas.FORMULA.fullmatch(source)
        check(tree)


def test_what_never_closes_costs_little():
    start = time.process_time()
    for text in ("\\[", "$", "\\boxed{", "$a", "{}\\boxed{{}"):
        split_formulas(text * 20_000, {})
    assert to_tree("{" * 5000 + "}" * 5000, False) is None
    assert time.process_time() - start < 5
