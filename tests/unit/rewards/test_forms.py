"""The table of forms: a case for every row, and that it is read in linear time."""

import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.rewards.choices import stated_letter
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
distances of rows           | 1\\[4pt]2\cr 3\\*[1em]4         | 1\\ 2\\ 3\\ 4
stops of rows               | \begin{cases}x,&y,\\z.\end{cases} | \begin{cases}x&y\\z\end{cases}
systems of two rows         | \begin{cases}x=1\\y=2\end{cases} | x=1, y=2
systems of three rows       | \begin{cases}1\\2\\3\end{cases} | 1, 2, 3
powers in brackets          | x**(-1)                         | x^{-1}
powers by stars             | x**2*y**3                       | x^{2}*y^{3}
layout                      | \begin{aligned}37\end{aligned}  | 37
layout of one row           | \begin{array}{c}37\end{array}   | 37
colons in braces            | 4{:}30                          | 4:30
zeros before hours          | 09:45                           | 9:45
spaces of a length          | \hspace{1em}37                  | 37
tags                        | <b>37</b>                       | 37
marks around all            | _37_                            | 37
Markdown                    | **37** `x`                      | 37 x
colours                     | \textcolor{blue}{\frac12}       | \frac12
empty delimiters            | \left. x \right.                | x
commands                    | \dfrac12\bigl(x\bigr)\tg 2      | \frac12(x)\tan 2
money                       | US\$18                          | \text{dollar}18
formulas                    | \(x\) and $y$                   | x and y
millionths of units         | 20\,\mu\mathrm{m}               | 20\text{ μm}
fractions of units          | 4\,\frac{\mathrm{J}}{\mathrm{g\,K}} | 4\text{ J/g/K}
units in braces of their own | 5~\text{kg}\,\text{m}\cdot\text{s}^{-1} | 5\text{ kg m/s}
products of units           | 20\,\mathrm{N\cdot m}           | 20\text{ N m}
reciprocals of units        | 50\ \mathrm{cm}^{-2}            | 50\text{ /cm^2}
units in italics with a negative power | 5 m\,s^{-2}          | 5\text{ m/s^2}
units in italics with a slash | 5 kg m^2/s                    | 5\text{ kg m^2/s}
upright units               | 7\,\mathrm{m}                   | 7\text{ m}
negative powers of units    | 4\,\mathrm{J\,g^{-1}\,K^{-2}}   | 4\text{ J/g/K^2}
powers of units             | 4\,\mathrm{kg\,m^{2}\,s^{-2}}   | 4\text{ kg m^2/s^2}
first powers of units       | 50\ \mathrm{s^{-1}}             | 50\text{ /s}
spaces between units        | 20\,\mathrm{N~m}                | 20\text{ N m}
slashes between units       | 5\,\text{m} / \text{s}          | 5\text{ m/s}
two units below a slash     | 4\,\mathrm{J/(kg\cdot K)}       | 4\text{ J/kg/K}
one unit below a slash      | 5\,\frac{\mathrm{m}}{\mathrm{s}} | 5\text{ m/s}
marks of units              | 20\,\mathrm{N/m}                | 20\text{ N/m}
names in braces             | \angle{ABC}                     | \angle ABC
styles                      | 2^\bm{10}+\mathrm{cm}           | 2^{10}+\text{cm}
styles in styles            | \bm{\mathbf{7}}                 | 7
commands in styles          | \operatorname{tg} 2             | \tan 2
bare styles                 | \boldsymbol\pi                  | \pi
spaces before a base        | \text{A5}_{11}                  | A5_{11}
conditions of rows          | x&\text{if }x>0                 | x& x>0
second derivatives by x     | \frac{d^2y}{dx^2}               | y''
derivatives of functions    | \frac{d}{dx}f(x)                | f'(x)
derivatives by x            | \frac{dy}{dx}=dy/dx             | y'=y'
derivatives                 | \frac{\partial u}{\partial t}+\frac{dr}{d\theta} | u_{dt}+r_{d\theta}
quotients of differentials  | dx/dy                           | x_{dy}
transposes                  | A^T+A^{\top}                    | A^{t_{9}}+A^{t_{9}}
odds                        | 3\text{ to }2                   | 3:2
inches                      | 5\text{ in.}                    | 5\text{inch}
squares in Chinese          | 5平方米                            | 5\text{square }米
cubes in Chinese            | 5立方米                            | 5\text{cubic }米
decimal commas behind zero  | 0{,}125                         | 0.125
decimal commas              | -3{,}14                         | -3.14
digits in groups            | 1{,}234{,}567                   | 1234567
spaces                      | a\ ~\; b                        | a b
Greek letters as plain text | 2pi/3                           | 2\pi /3
functions as plain text     | 2ln 3+sin(x)                    | 2\ln  3+\sin (x)
absolute values as plain text | abs(x-1)                      | |x-1|
cube roots as plain text    | cbrt(x+1)                       | \sqrt[3]{x+1}
whole parts as plain text   | floor(x)+ceil(y)                | \lfloor x\rfloor +\lceil y\rceil
inverse functions as plain text | 2atan(x)                    | 2\arctan (x)
numerators without braces   | \frac\pi 4+\frac\alpha\beta     | \frac{\pi}4+\frac{\alpha}{\beta}
denominators without braces | \frac4\pi+\frac{2x}\pi          | \frac{4}{\pi}+\frac{2x}{\pi}
roots without braces        | \sqrt\frac12+\sqrt[3]2 | \sqrt{\frac12}+\sqrt[3]{2}
multiples of ohms           | 5\,\mathrm{k\Omega}             | 5\text{ kohm}
ohms                        | 5\,\Omega                       | 5\text{ ohm}
ordinal numbers             | 7^{th} or 21^{\text{st}}        | 7 or 21
binomials of digits         | \binom52                        | \binom{5}{2}
binomials by choose         | {10 \choose 3}                  | \binom{10}{3}
double factorials of even numbers | 8!! | (2^{\frac{8}{2}}\cdot(\frac{8}{2})!)
double factorials of odd numbers | 7!! | \frac{7!}{2^{\frac{7-1}{2}}\cdot(\frac{7-1}{2})!}
combinations                | C_7^2                           | \binom{7}{2}
permutations                | {}_5P_2                         | \frac{5!}{(5-2)!}
moduli                      | 1\pmod p                        | 1\bmod{p}
residues with both signs    | \equiv\pm 1\pmod p              | \equiv 1, -1\bmod{p}
two residues                | n\equiv 0, 5\pmod 6             | n=(0\mod 6)+6k, n=(5\mod 6)+6k
congruences                 | n\equiv -1\pmod 6               | n=(-1\mod 6)+6k
divisors                    | 3\mid n                         | n=(0\mod 3)+3k
classes of residues         | -1\pmod 6                       | (-1\mod 6)+6k
constants in words          | x+\text{constant}               | x+ C
for all                     | n\text{ for all integers }n     | n
where it holds              | 2^n\text{ for }n\ge 1           | 2^n
indices                     | a_n=2^n\ (n\in\mathbb{N}^*)     | a_n=2^n
declared constants          | x+C,\text{ where }C\text{ is a constant} | x+C
domains                     | f(x)=x, x\in\mathbb{R}          | f(x)=x
numbers once more           | 9 (nine)                        | 9
empty sets                  | \{\ \}                          | \emptyset
limits that do not exist    | \text{DNE}                      | \text{does not exist}
negative numbers in words   | \text{negative five}            | -5
tens in words               | \text{twenty-four}              | \text{24}
ones in words               | ninety-nine                     | 99
numbers before parts and magnitudes | \text{two thirds}       | 2\cdot\frac{1}{3}
numbers behind magnitudes   | one hundred and twelve          | 112
chances                     | 1\text{ in }4                   | \frac{1}{4}
ones behind hundreds        | three hundred five              | 305
hundreds                    | \text{two hundred fifty dollars} | 250\text{ dollars}
hundreds before magnitudes  | four hundred thousand           | 400\cdot 10^{3}
several magnitudes          | \text{one thousand six people}  | 1\cdot 10^{3}+6\text{ people}
thousands                   | one thousand two hundred        | 1\cdot 10^{3}+2\cdot 10^{2}
millions                    | two million forty-one           | 2\cdot 10^{6}+41
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
one part or magnitude       | \text{a half}                   | 1\cdot\frac{1}{2}
numbers before words        | \text{sixteen ways}             | 16\text{ ways}
numbers among words         | \text{7 apples}                 | 7\text{ apples}
parts of a whole            | 3\text{ sevenths}               | 3\cdot\frac{1}{7}
magnitudes before words     | 2\text{ million people}         | 2\cdot 10^{6} \text{ people}
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
bases of logarithms         | \log_2 8                        | \log_{2} 8
imaginary unit              | 6+9i                            | 6+9 i
sets by a condition         | \{x\in\mathbb{R}: 0\le x\le 1\} | 0\le x\le 1
real numbers in words       | \text{all real numbers}         | \mathbb{R}
sets with a colon           | \{2k: k\in\mathbb{Z}\}          | \{2k\mid k\in\mathbb{Z}\}
number sets                 | \R                              | \mathbb{R}
differences of sets         | \mathbb{R}-\{0\}                | \mathbb{R}\setminus \{0\}
conditions in brackets      | k\pi\ (k\in\mathbb{Z})          | k\pi, k\in\mathbb{Z}
labels of parts in words    | \text{(a) }5 \text{(b) }6         | a=5; b=6
numbers of parts in words   | \text{Part 1: }5 \text{Part 2: }6 | a=5; b=6
four labelled parts         | (a) 1 (b) 2 (c) 3 (d) 4         | a=1; b=2; c=3; d=4
three labelled parts        | (i) 1, (ii) 2, (iii) 3          | a=1; b=2; c=3
two labelled parts          | (1) 5 (2) 6                     | a=5; b=6
three labelled parts turned around | (3) 7 (2) 6 (1) 5        | a=5; b=6; c=7
three labelled parts in another order | (b) 6 (c) 7 (a) 5    | b=6; c=7; a=5
two labelled parts turned around | (2) 6 (1) 5                | a=5; b=6
pairs turned around         | 2-A, 1-B                        | A-2, B-1
pairs with colons           | A: 2, B: 1                      | A=2, B=1
letters before numbers      | p 12 q 5                        | p=12; q=5
three named coordinates     | (x,y,z)=(1,0,f(2))              | x=1; y=0; z=f(2)
two named coordinates       | (k,\mu)=(2,3)                   | k=2; \mu=3
words before a conclusion   | Therefore f(2)=-7               | f(2)=-7
names by a verb             | x is 5                          | x=5
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
conditions          | (p\land q)\lor r                 | (p\land q)\lor r
lists               | 8\text{ girls and }5\text{ boys} | 8⟦girls⟧, 5⟦boys⟧
systems             | x=1,y=2\text{ or }x=3,y=4        | x=1,y=2; x=3,y=4
neighbours of powers | 6\,\mathrm{kg\,m^2/s}           | 6⟦kgm^2/second⟧
marks of conditions | x<2                              | x<2
neighbours          | 15\text{ square}\text{ feet}     | 15⟦foot^2⟧
names               | \text{EUR }18, €5                | 18⟦euro⟧, 5⟦euro⟧
no solutions        | \text{No real solutions}         | ⟦no real solution⟧
rates               | 30 miles per hour                | 30 ⟦mile/hour⟧
squares             | 15\text{ cm squared}             | 15⟦cm^2⟧
cubes               | 15\text{ cubic centimeters}      | 15⟦cm^3⟧
no words            | 5\text{ in total}                | 5
powers              | 15\mbox{ cm}^2                   | 15⟦cm^2⟧
money               | \$5,000                          | 5,000⟦dollar⟧
values behind words | 2\text{ hours }15\text{ minutes} | 2⟦hour⟧, 15⟦minute⟧
free constants      | x^2+c                            | x^2+C
shares and percentages | 0.56=56\%                     | 0.56
one numbered constant | x^2+c_1                          | x^2+C
factors of exponentials | y=ce^{2x}                    | y=Ce^{2x}
numbered constants  | c_1e^x+c_2                       | C_1e^x+C_2
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


@pytest.mark.parametrize("part", ["=", "½"])
def test_a_long_paragraph_is_read_quickly_where_it_may_begin_with_a_letter(part):
    started = time.process_time()
    assert stated_letter(part * 20_000) is None
    assert time.process_time() - started < 3
