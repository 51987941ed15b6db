"""The table of forms: a case for every row, and that it is read in linear time."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import ROOT
from support.scripts import python

from openrlhf_swap.rewards.comparison import same_answer
from openrlhf_swap.rewards.forms import TABLES, canonical, write_latex
from openrlhf_swap.rewards.quantities import mark_words, may_be_missing
from openrlhf_swap.rewards.statements import answer_start, stated_answer


def read_table(text):
    """The rows of a table: its first column -> the others."""
    rows = [line.split(" | ") for line in text.strip().splitlines()]
    return {name.strip(): (given.strip(), expected) for name, given, expected in rows}


# A form, a text that has it, and the text as it is read.
CASES = read_table(
    r"""
square metres               | 5m²                             | 5\text{ m}^{2}
raised digits               | x⁻¹                             | x^{-1}
lowered digits              | x₁                              | x_{1}
roots of numbers            | 2√13                            | 2\sqrt{13}
roots of brackets           | √(√7)                           | \sqrt{\sqrt{7}}
layout                      | \begin{aligned}37\end{aligned}  | 37
layout of one row           | \begin{array}{c}37\end{array}   | 37
spaces of a length          | \hspace{1em}37                  | 37
tags                        | <b>37</b>                       | 37
marks around all            | _37_                            | 37
Markdown                    | **37** `x`                      | 37 x
colours                     | \textcolor{blue}{\frac12}       | \frac12
empty delimiters            | \left. x \right.                | x
commands                    | \dfrac12\bigl(x\bigr)\tg 2      | \frac12(x)\tan 2
money                       | US\$18                          | \text{dollar}18
formulas                    | \(x\) and $y$                   | x and y
upright units               | 7\,\mathrm{m}                   | 7\text{ m}
names in braces             | \angle{ABC}                     | \angle ABC
styles                      | 2^\bm{10}+\mathrm{cm}           | 2^{10}+\text{cm}
styles in styles            | \bm{\mathbf{7}}                 | 7
commands in styles          | \operatorname{tg} 2             | \tan 2
bare styles                 | \boldsymbol\pi                  | \pi
inches                      | 5\text{ in.}                    | 5\text{inch}
squares in Chinese          | 5平方米                            | 5\text{square }米
cubes in Chinese            | 5立方米                            | 5\text{cubic }米
digits in groups            | 1{,}234{,}567                   | 1234567
spaces                      | a\ ~\; b                        | a b
spaces between digits       | 12 345 678                      | 12345678
powers of ten               | 3E-08                           | 3\cdot 10^{-8}
periods with a line or dots | 0.\dot{1}4285\dot{7}            | \frac{142857}{999999}
periods in brackets         | 0.8(3)                          | \frac{75}{90}
periods that go on          | 0.666...                        | \frac{6}{9}
dots                        | 1, 2, ..., 9                    | 1, 2, \ldots , 9
mixed numbers               | 8 1/2                           | 8\frac{1}{2}
fractions of digits         | \frac 3 8                       | \frac{3}{8}
degrees in functions        | \sin 30^\circ                   | \sin (30\cdot\frac{\pi}{180})
degrees Celsius             | 20^\circ\text{C}                | 20\text{degree C}
degrees                     | 120^o                           | 120\text{degree}
percent                     | 5\%                             | 5\text{percent}
magnitudes                  | 2.5\text{ million}              | 2.5\cdot 10^{6}
numbers in words            | 101_{\text{two}}                | 101_{2}
bases with a word           | 110_{\text{base }2}             | 110_{2}
bases                       | (1A)_{16}                       | 1A_{16}
bases in brackets           | 110_{(2)}                       | 110_{2}
bases in words              | 110_{two}                       | 110_{2}
intervals open to the left  | ]0,1]\cup]2,3]                  | (0,1]\cup(2,3]
intervals open to the right | [0,1[\cup[2,3[                  | [0,1)\cup[2,3)
semicolons                  | [0;1)                           | [0,1)
less or equal               | x<=1                            | x\le 1
greater or equal            | x>=1                            | x\ge 1
unequal                     | x!=1                            | x\ne 1
supersets                   | B\supset A                      | A\subset B
members                     | A\ni x                          | x\in A
natural logarithms          | \log_e 2                        | \ln  2
imaginary unit              | 6+9i                            | 6+9 i
sets by a condition         | \{x\in\mathbb{R}: 0\le x\le 1\} | 0\le x\le 1
number sets                 | \R                              | \mathbb{R}
conditions in brackets      | k\pi\ (k\in\mathbb{Z})          | k\pi, k\in\mathbb{Z}
labels                      | Answer: 5                       | 5
stops                       | 5。                              | 5
stops in words              | \text{Evelyn.}                  | \text{Evelyn}
braces around all           | {x^{2}}                         | x^{2}
"""
)
CASES |= {
    "invisible characters": ("\u200b10\ufe0f", "10"),
    "Unicode": ("½\uff0b٤≤π", r"\frac{1}{2}+4\le \pi"),
}
WORDS = read_table(
    r"""
labels of choices   | (B) 5                            | 5
words               | São Paulo                        | ⟦são paulo⟧
connectives         | x<2\text{ or }x>3                | x<2\lor x>3
conditions          | x\ne 2\text{ and }x>1            | x\ne 2\land x>1
lists               | 8\text{ girls and }5\text{ boys} | 8⟦girls⟧, 5⟦boys⟧
marks of conditions | x<2                              | x<2
neighbours          | 15\text{ square}\text{ feet}     | 15⟦foot^2⟧
names               | \text{EUR }18, €5                | 18⟦euro⟧, 5⟦euro⟧
rates               | 30 miles per hour                | 30 ⟦mile/hour⟧
squares             | 15\text{ cm squared}             | 15⟦cm^2⟧
cubes               | 15\text{ cubic centimeters}      | 15⟦cm^3⟧
no words            | 5\text{ in total}                | 5
powers              | 15\mbox{ cm}^2                   | 15⟦cm^2⟧
money               | \$5,000                          | 5,000⟦dollar⟧
values behind words | 2\text{ hours }15\text{ minutes} | 2⟦hour⟧, 15⟦minute⟧
declared variables  | n\pi, n\in\mathbb{Z}             | k\pi, k\in\mathbb{Z}
"""
)


def test_every_row_of_the_table_has_a_case():
    assert {*CASES} == {form["what"] for form in TABLES["forms"]}
    assert {*WORDS} == {form["what"] for form in TABLES["word_forms"]}


@pytest.mark.parametrize(("text", "written"), CASES.values(), ids=CASES)
def test_forms(text, written):
    assert canonical(text) == written


AS_IT_STANDS = r"3 4/5/2024|1.8 1/2|x^8 1/2|8 1/2x|1, 1/2, 3|3 4 5|(1\,2)|5in|{1}{2}"


@pytest.mark.parametrize("text", AS_IT_STANDS.split("|"))
def test_what_stays_as_it_stands(text):
    assert canonical(text) == text.replace(r"\,", " ")


DIGITS = "0123456789"


@given(st.integers(0, 999), st.text(DIGITS, max_size=4), st.text(DIGITS, min_size=1, max_size=4))
def test_repeating_decimals_are_exact(whole, fixed, period):
    r"""Against the series: 0.a\overline{b} is a, and b over and over behind it."""
    written = canonical(rf"{whole}.{fixed}\overline{{{period}}}")
    above, below = written.removeprefix(r"\frac{").rstrip("}").split("}{")
    digits = 10 ** len(fixed)
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    expected = whole + Fraction(int(fixed or "0"), digits) + repeated / digits
    assert Fraction(int(above), int(below)) == expected


@given(st.text(alphabet="aπ√²½°\u2212(){}7 \uff17i.", max_size=12))
def test_latex_is_written_once(text):
    assert write_latex(write_latex(text)) == write_latex(text)


@pytest.mark.parametrize(
    ("text", "marked"),
    [
        *WORDS.values(),
        ("5", "5"),
        (r"\text{42 people}", "42⟦people⟧"),
        (r"\frac{n}{2}\text{ if }n\text{ is even}", r"\frac{n}{2}⟦if⟧, n⟦even⟧"),
        ("12个", "12⟦个⟧"),
    ],
)
def test_words_stand_in_marks_beside_their_values(text, marked):
    assert mark_words(canonical(text)).replace(" ", "") == marked.replace(" ", "")


def test_what_one_side_may_lack():
    assert all(map(may_be_missing, ["cm", "km/hour", "cm^2", "people", "apples", "个", "dollar"]))
    others = ["more", "loss", "halves", "east", "impossible", "percent increase", "scores"]
    assert not any(map(may_be_missing, others))


def test_the_page_prints_the_tables():
    made = python("docs/make_grading.py")
    page = (ROOT / "docs/use/grading.md").read_text(encoding="utf-8")
    assert made.stdout == page, "run: python docs/make_grading.py > docs/use/grading.md"


PARTS = [
    *("1", ".", "√", "√(", "°", "。", "\n", " ", "$", "²", "½", "{", "}", "€", "\\bm{", "(", "$$"),
    *("1\\,000", "\\boxed{", "\\boxed{1} ", "answer: ", "answer to ", "\n** ", "is not ", "**\n"),
    *("0.\\overline{", "8 1/2, ", "\\sin 1^\\circ", "\\text{", "a.", "the answer is ", "\\{"),
]


@pytest.mark.parametrize("part", PARTS)
def test_long_responses_take_linear_time(part):
    text = part * (100_000 // len(part))
    started = time.process_time()
    stated_answer(text)
    stated_answer("The answer is: " + text)
    answer_start(text + "1")
    assert not same_answer("1", f"2{text}")
    assert time.process_time() - started < 2


@pytest.mark.parametrize("part", [*PARTS[::4], "(", "{"])
def test_answers_that_are_taken_apart_are_read_quickly(part):
    """Longer ones are compared as they stand."""
    started = time.process_time()
    same_answer("12", f"{part * (990 // len(part))}3")
    assert time.process_time() - started < 3
