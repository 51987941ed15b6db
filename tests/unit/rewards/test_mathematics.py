"""The math verifier, and the one verdict for every caller. The pairs are in tests/stack."""

import math

import pytest

from openrlhf_swap.rewards import grade_answer
from openrlhf_swap.rewards.comparison import same_answer
from openrlhf_swap.rewards.graded_text import text_to_grade
from openrlhf_swap.rewards.mathematics import find_fault, verify
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rewards.verifiers import THOUGHT_CLOSED

# A reference answer, what a response states, and whether they are the same.
COMPARED = r"""
# Exact numbers are compared exactly, also in points and with variables.
2-\frac{1}{2^{99}}  | 2-\frac{1}{2^{100}}        | different
2-\frac{1}{2^{99}}  | \frac{2^{100}-1}{2^{99}}   | same
x+\frac{1}{3^{50}}  | x+\frac{1}{3^{51}}         | different
\sqrt{2}+10^{-200}  | \sqrt{2}                   | different
# Decimal numbers to six places, small ones relatively.
\frac{1}{3}         | 0.333333                   | same
\frac{1}{3}         | 0.3333                     | different
1.6 \times 10^{-19} | 1.7 \times 10^{-19}        | different
# Letters, primes and dots count.
R-r                 | 0                          | different
e                   | E                          | different
1,2,\ldots,10       | 1,2,10                     | different
# Chains of equations are read if they are true.
5                   | 2+3=5                      | same
5                   | 3=5                        | different
\sqrt{2}            | x = \sqrt{2} \approx 1.414 | same
# Times are no quotients, ratios are.
4:30 | 2:15 | different
12:30 | \frac{2}{5} | different
4:30\text{ p.m.} | 4:30\text{ a.m.} | different
4:30 PM | \text{4:30 p.m.} | same
09:45 | 9:45 | same
3:4 | \frac{3}{4} | same
# Parts of a whole are fractions.
3 | 3\text{ elevenths} | different
\frac{2}{3} | \text{two thirds} | same
# A labelled part has a name.
(a) 5 (b) 6 | (a) 6 (b) 5 | different
(i) 5, (ii) 6 | (1) 5; (2) 6 | same
(a) 5 (b) 6 | 5, 6 | same
(a) 5 (b) 6 | (b) 6 (a) 5 | same
(a) 5 (b) 6 | (b) 5 (a) 6 | different
A-2, B-1 | 1-B, 2-A | same
A-2, B-1 | 1-A, 2-B | different
A: 2, B: 1 | B: 1, A: 2 | same
A-II, B-I | I-B, II-A | same
(a) 5 (b) 6 (c) 7 | (b) 6 (c) 7 (a) 5 | same
(a) 5 (b) 6 (c) 7 | (b) 7 (c) 6 (a) 5 | different
A: 2, B: 1 | A: 1, B: 2 | different
# So has each value of a system, and each coordinate.
x=1,y=2\text{ or }x=3,y=4 | x=1,y=4\text{ or }x=3,y=2 | different
x=1,y=2\text{ or }x=3,y=4 | (3,4),(1,2) | same
n=2 | n=2, n=3 | different
2, 3 | n=2, n=3 | same
(k,m)=(2,3) | (m,k)=(2,3) | different
(k,m)=(2,3) | (m,k)=(3,2) | same
(x,y)=(1,2),(3,4) | (y,x)=(1,2),(3,4) | different
(x,y)=(1,2),(3,4) | (3,4),(1,2) | same
(\alpha,\beta)=(1,2) | (\beta,\alpha)=(1,2) | different
(\alpha,\beta)=(1,2) | (\beta,\alpha)=(2,1) | same
# An interval is no list, and a set of another variable.
[1,2] | 1, 2 | different
1, 6 | [1,6) | different
x\in[1,2] | x=1\text{ or }x=2 | different
(1,2) | 1,2 | same
x\in(0,1) | 0<y<1 | different
0<y<1 | x\in(0,1) | different
x\in(0,1) | y\in(0,1) | different
x\in(0,1) | 0<x<1 | same
\theta\in[0,\pi] | 0\le\phi\le\pi | different
\theta\in[0,\pi] | 0\le\theta\le\pi | same
# "Or" is not "and" between propositions.
p\vee q | p\wedge q | different
p\vee q | q\vee p | same
(p\wedge q)\vee r | (p\vee q)\wedge r | different
\text{red and blue} | \text{red or blue} | different
2\text{ or }3 | 2\text{ and }3 | same
x=1\text{ and }y=2 | x=1\text{ or }y=2 | different
x=1\text{ and }x=2 | x=1\text{ or }x=2 | same
# Derivatives, values at places, functions and transposes are read as they stand.
\frac{dx}{dy} | \frac{dy}{dx} | different
\frac{dr}{d\theta} | \frac{d\theta}{dr} | different
\frac{\partial u}{\partial t} | 2\frac{\partial u}{\partial t} | different
\frac{dy}{dx}=2x | y'=2x | same
f(2)=5 | f(3)=5 | different
f(-2)=5 | 5 | same
f(x+1) | fx+f | different
E(X^2) | E(X)^2 | different
E(X)^2 | E(X^2) | different
A^T | A | different
A+A^T | 2A | different
A^T | A^{\top} | same
# Equations may stand in another form.
y=2x+1 | 2x-y+1=0 | same
y=2x+1 | 2x-y-1=0 | different
# So may logarithms, functions in plain text, rows, congruences and constants.
\log_2 8 | 3 | same
\sin x | sin x | same
ln 2 | nl2 | different
16\pi | 16pi\text{ cm} | same
\begin{pmatrix}3\\4\end{pmatrix} | \begin{pmatrix}3\\[4pt]4\end{pmatrix} | same
\begin{cases}a=3\\b=8\end{cases} | a=3, b=8 | same
n\equiv 1\pmod 3 | n\equiv 1\ (\mathrm{mod}\ 3) | same
5\pmod 7 | 5 | same
x^2+C | x^2+c | same
x^2+C | x^2 | different
y=Ce^{2x} | y=ce^{2x} | same
x^2+C | x^2+C_1 | same
C_1x+C_2 | c_1x+c_2 | same
C\Delta T | c\Delta T | different
12.5 | 12{,}5\text{ eV} | same
\emptyset | \text{the empty set} | same
24 | \text{twenty-four} | same
# The letters of a formula with roots or logarithms are positive, but not where bars are written.
\sqrt{\frac{k}{m}} | \frac{\sqrt{km}}{m} | same
T=2\pi\sqrt{\frac{l}{g}} | T=\frac{2\pi\sqrt l}{\sqrt g} | same
36x\sqrt{35x} | \sqrt{45360x^3} | same
\sqrt{x^2y} | x\sqrt y | same
\log_2(xy) | \log_2 x+\log_2 y | same
3\ln x | \ln x^3 | same
\sqrt{\pi r^2} | r\sqrt\pi | same
\sqrt{x^2} | x | different
\sqrt{4x^2} | 2x | different
\sqrt{(x-1)^2} | x-1 | different
|a|\sqrt b | a\sqrt b | different
\ln|x|+C | \ln x+C | different
\sqrt{a^2+b^2} | a+b | different
\ln(a+b) | \ln a+\ln b | different
# A congruence is a class, whose residue alone may be stated.
n\equiv 5\pmod 6 | n=6k+5 | same
n\equiv 5\pmod 6 | 5 | same
5 | n\equiv 5\pmod 6 | different
n\equiv 5\pmod 6 | n\equiv 5\pmod 7 | different
n\equiv 5\pmod 6 | x\equiv 5\pmod 6 | different
n\equiv\pm 1\pmod 6 | n\equiv 5, 1\pmod 6 | same
n\equiv\pm 1\pmod 6 | n\equiv 1\pmod 6 | different
# Units may stand with negative powers.
5\text{ m/s} | 5\,\text{m s}^{-1} | same
5\text{ m/s} | 5~\mathrm{m}\cdot\mathrm{s}^{-1} | same
5\text{ m/s} | 5\,\mathrm{km\,s^{-1}} | different
9.8\ \mathrm{m/s^2} | 9.8\,\frac{\text{m}}{\text{s}^2} | same
9.8\ \mathrm{m/s^2} | 9.8\,\mathrm{m\,s^{-1}} | different
4.2\,\mathrm{J\,g^{-1}\,K^{-1}} | 4.2\ \mathrm{J/(g\cdot K)} | same
3\times 10^{8} | 3\times 10^8\,\mathrm{m\,s^{-1}} | same
2e^{-1} | 2\mathrm{e}^{-1} | same
2A^{-1} | 2\mathrm{A}^{-1} | same
20\ \mathrm{N/m} | 20\,\mathrm{N\cdot m} | different
5 | 5\,\mathrm{kg\,m^2\,s^{-2}} | same
5\,\mathrm{kg\,m^2\,s^{-2}} | 5~\text{kg}\cdot\text{m}^2/\text{s}^2 | same
5\,\mathrm{kg\,m^2\,s^{-2}} | 5\,\mathrm{kg\,m^2\,s^{-1}} | different
5.67\,\mathrm{W\,m^{-2}\,K^{-4}} | 5.67\,\frac{\mathrm{W}}{\mathrm{m^2\,K^4}} | same
20 | 20\,\mathrm{N\cdot m} | same
# M is a million, and m a thousandth.
5\text{ MW} | 5\,\mathrm{mW} | different
5\,\mathrm{mPa} | 5\,\mathrm{MPa} | different
5\,\mathrm{MN\,m} | 5\,\mathrm{mN\,m} | different
5\text{ MHz} | 5\text{ megahertz} | same
5\text{ MW} | 5\text{ megawatts} | same
5\text{ mV} | 5\text{ millivolts} | same
5\text{ kg} | 5\text{ KG} | same
10 | 10\text{ kN} | same
20 | 20\,\mu\text{m} | same
20\,\mu\text{m} | 20\text{ m} | different
2\text{ million} | \text{2 million people} | same
# Signs of sets, empty sets, and labels in words.
A\subseteq B | A ⊆ B | same
x\notin A | x∈A | different
\mathbb{R}\setminus\{0\} | \mathbb{R}-\{0\} | same
\emptyset | \text{There is no solution.} | same
\emptyset | \{\emptyset\} | different
\text{no solution} | \text{no real solution} | different
\text{(a) }5, \text{(b) }6 | (a) 5 (b) 6 | same
\text{(a) }5, \text{(b) }6 | (a) 6 (b) 5 | different
# Braces may be missing.
\frac{\pi}{4} | \frac\pi4 | same
\frac{\pi}{4} | \frac4\pi | different
\frac{\sqrt2}{2} | \sqrt\frac12 | same
\sqrt[3]{2} | \sqrt[3]2 | same
\sqrt[3]{2} | \sqrt[2]3 | different
# Double factorials, and equations of numbers.
\frac{5}{16} | \frac{5!!}{6!!} | same
20 | A_5^2 | same
A_1^2+A_2^2 | A_2^2+A_1^2 | same
36 | {}_9C_2 | same
(2n-1)!! | \frac{(2n)!}{2^n n!} | same
40320 | 8!! | different
3+4=7 | 2+6=8 | different
2\times 3=6 | 2\cdot 3=6 | same
\text{A5}_{11} | \text{A5}_{21} | different
1+1=2 | 3-1=2 | same
0.56=56\% | 1.56=56\% | different
0.5\text{ m}=50\text{ cm} | 1.5\text{ m}=50\text{ cm} | different
0.56=56\% | 0.56 | same
0.3=30\% | 30\% | same
0.56=57\% | 0.56 | different
\theta=5 | 3=5 | different
# A number with a base has no unit, and two numbers are not one.
40^\circ | 40_9 | different
31_8 | 31\% | different
\$40 | 40_9 | different
101_2 | 101 | same
1\ 3 | 13 | different
# Numbers in words.
125 | \text{one hundred twenty-five} | same
152 | \text{one hundred twenty-five} | different
340000 | \text{three hundred and forty thousand} | same
105 | \text{a hundred and five} | same
1250 | \text{twelve hundred fifty} | same
0.125 | \text{one hundred twenty-five thousandths} | same
\frac16 | \text{one in six} | same
# A short sentence is read as its equation.
-7 | Therefore f(2) = -7 | same
\sqrt 2 | x is √2 | same
y=\sqrt 2 | x is √2 | different
56 | C(8,3) | same
"""
PAIRS = [line for line in COMPARED.strip().splitlines() if not line.startswith("#")]


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_compared(pair):
    gold, stated, expected = (part.strip() for part in pair.split(" | "))
    assert same_answer(gold, stated) is (expected == "same")


@pytest.mark.parametrize("stated", range(-9, 15))
def test_congruences_have_the_residues_of_their_modulus(stated):
    gold = r"n\equiv 5\pmod 6"
    assert same_answer(gold, rf"n\equiv {stated} \pmod{{6}}") is (stated % 6 == 5)


@pytest.mark.parametrize("number", [*range(1, 13), 99, 100])
def test_a_double_factorial_is_the_product_of_every_other_number(number):
    product = math.prod(range(number, 0, -2))
    assert same_answer(str(product), f"{number}!!")
    assert not same_answer(str(product + 1), f"{number}!!")


def test_which_golds_can_be_graded_against():
    good = [
        "星期一",
        r"\mathbb{Z}^+",
        r"\text{São Paulo}",
        r"\tan 15^\circ",
        r"\{2k\mid k\in\mathbb{Z}\}",
        "1:2:3",
    ]
    assert [find_fault(gold, {}) for gold in good] == [None] * len(good)
    bad = ["$ $", r"\frac{1}{", r"\frac{}{2}", "x^", r"\text{see figure"]
    assert {find_fault(gold, {}) for gold in bad} == {"an answer that cannot be parsed"}
    with pytest.raises(ValueError, match="cannot be parsed"):
        verify("", r"\frac{1}{", r"\boxed{1}", {THOUGHT_CLOSED: True})


def test_the_verdict_says_what_was_read():
    verdict = verify("", "42", r"so \boxed{\boxed{41}}", {THOUGHT_CLOSED: True})
    assert not verdict.correct
    assert verdict.stated == "41"
    assert not verify("", "42", "I do not know", {THOUGHT_CLOSED: True}).answered


@pytest.mark.parametrize(
    ("prompt", "response", "correct"),
    [
        ("Add 40 and 2. <think>\n", "It is 42.", False),  # an open thought states nothing so
        ("Add 40 and 2. <think>\n", "so</think>It is 42.", True),
        ("Add 40 and 2. <think>\n\n</think>\n\n", "It is 42.", True),
        ("Add 40 and 2. <think></think>", r"\boxed{42}", True),
        ("Is it \\boxed{42}?", "I do not know", False),
    ],
)
def test_training_and_every_other_caller_give_one_verdict(prompt, response, correct):
    """A template may close the thought: then all of the response is its answer."""
    trained = reward_func([prompt + response], [prompt], ["42"])
    assert trained["extra_logs"]["swap/graded_correct"] == float(correct)
    assert grade_answer(text_to_grade(prompt, response), "42").correct is correct


def test_gpt_oss_may_answer_without_a_thought():
    end = "<|end|><|start|>assistant<|channel|>final<|message|>"
    answer = "We get $7$.<|return|>"
    assert grade_answer(f"<|channel|>final<|message|>{answer}", "7", end).correct
    assert grade_answer(f"<|channel|>analysis<|message|>add{end}{answer}", "7", end).correct
    assert not grade_answer(f"<|channel|>analysis<|message|>{answer}", "7", end).correct
