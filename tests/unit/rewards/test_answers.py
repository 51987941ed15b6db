"""Reference answers as text: bare, in their normal form, and those that cannot be used."""

import math

import pytest

from openrlhf_swap.rewards.answers import (
    EMPTY_ANSWER,
    LONG_ANSWER,
    PLACEHOLDER_ANSWER,
    PROSE_ANSWER,
    normal_answer,
    strip_answer,
    visible_fault,
)


@pytest.mark.parametrize(
    ("wrapped", "bare"),
    [
        (" $42$ ", "42"),
        ("$$x^2$$", "x^2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed{7}$", "7"),
        (r"\boxed{1}+\boxed{2}", r"\boxed{1}+\boxed{2}"),
        ("$1$ and $2$", "$1$ and $2$"),
        ("", ""),
        ("$" * 50_000, "$" * 50_000),
    ],
)
def test_answers_are_unwrapped(wrapped, bare):
    assert strip_answer(wrapped) == bare


GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nTogether 48+24 = <<48+24=72>>72.\n#### 72"


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (GSM8K, "72"),
        ("so\n#### 1,018", "1018"),
        (r"Adding, \boxed{5} or better \boxed{\frac12}.", r"\frac12"),
        (r"\boxed{(1, 2)}", "(1, 2)"),
        # A column of integers with holes, and small and large numbers.
        (72.0, "72"),
        (0.5, "0.5"),
        (math.nan, ""),
        (-2.5e-7, "-0.00000025"),
        (1.5e22, "15000000000000000000000"),
        (-0.0, "-0"),
        (None, ""),
        (True, ""),
        # Unicode.
        ("\uff17\uff12", "72"),
        ("1¾", r"1\frac{3}{4}"),
        ("10²³", "10^{23}"),
        ("\u22123", "-3"),
        ("90°", r"90^{\circ}"),
        ("2√3", r"2\sqrt{3}"),
        ("[0, ∞)", r"[0, \infty )"),
        # Lists, also as text, also with LaTeX that was not escaped.
        (["72"], "72"),
        ([2, "$3$"], "2, 3"),
        (["2", ""], ""),
        (r'["\frac{1}{2}"]', r"\frac{1}{2}"),
        (r'["\beta", "\nu"]', r"\beta, \nu"),
        (r'["S\u00e3o Paulo"]', "São Paulo"),
        ("('2', '3')", "2, 3"),
        ('["a" and [1]', '["a" and [1]'),
        ("[165]", "[165]"),
        # Leading zeros of a number, but not of a decimal, in a base or in a text.
        ("$033$", "$33$"),
        (r"\boxed{-007}", "-7"),
        ("000", "0"),
        ("00.50", "0.50"),
        ("0101_2", "0101_2"),
        (r"\text{007}", r"\text{007}"),
        # Escaped twice, which a row of a matrix is not.
        (r"12\\%", r"12\%"),
        (r"\\frac{1}{2}\\pi", r"\frac{1}{2}\pi"),
        (r"\begin{matrix}1\\2\end{matrix}", r"\begin{matrix}1\\2\end{matrix}"),
        # Escapes of JSON and HTML, and quotes.
        ("\u201c42\u201d", "42"),
        (r"\u221a2", r"\sqrt{2}"),
        (r"1\/2", "1/2"),
        ("x &lt; 3", "x < 3"),
        ("1 & 2", "1 & 2"),
    ],
)
def test_the_normal_form(given, normal):
    assert normal_answer(given) == normal
    assert normal_answer(normal) == normal


@pytest.mark.parametrize(
    ("given", "equal"),
    [
        ("¾", "0.75"),
        ("1¾", "1.75"),
        ("x²", "xx"),
        ("\uff17\uff12", "72"),
        ("10²", "100"),
        (GSM8K, "72"),
        (1e-05, "10^{-5}"),
        (1e16, "10^{16}"),
    ],
)
def test_the_grader_understands_the_normal_form(grader, given, equal):
    assert grader.grade(f"\\boxed{{{equal}}}", normal_answer(given)).correct


PLACEHOLDERS = r"""
proof | Not found. | N/A | - | ? | (see solution) | \text{None} | NaN | null
see the solution | — | Q.E.D. | … | 略。 | Answers may vary | proof by parity
$\blacksquare$ | your answer here | [image] | 証明せよ | prueba | 答案不唯一 | см. решение
voir la solution | siehe Lösung | #REF! | ![](a.png) | image.jpg
"""
# Answers of the benchmarks and of the training pools, and what looks like a placeholder.
USABLE = r"""
No solution | True | none of these | above | open | A | Answer: A | (-) | East
7 minutes and 5 seconds | n | + | \text{two lines} | \emptyset | undefined
"""


def listed(text):
    """The answers of a text, between bars or in lines of their own."""
    return text.strip().replace("\n", " | ").split(" | ")


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("$ $", EMPTY_ANSWER),
        ("1+" * 150 + "1", LONG_ANSWER),
        ("He sold 48 eggs", PROSE_ANSWER),
        ("The answer is 42", PROSE_ANSWER),
        ("seventy two clips sold in April and May", PROSE_ANSWER),
        *((answer, PLACEHOLDER_ANSWER) for answer in listed(PLACEHOLDERS)),
        *((answer, None) for answer in listed(USABLE)),
    ],
)
def test_what_is_no_answer(answer, fault):
    assert visible_fault(answer) == fault
