"""Answers as text: found in a response, bare, in one spelling; reference answers that cannot be
used.
"""

import math
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.data import rows
from openrlhf_swap.data.rows import examples, find_gradable
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.answers import (
    EMPTY_ANSWER,
    LONG_ANSWER,
    PLACEHOLDER_ANSWER,
    PROSE_ANSWER,
    bare_answer,
    canonical,
    normal_answer,
    strip_answer,
    visible_fault,
    write_latex,
)
from openrlhf_swap.rewards.statements import answer_start, final_statement, stated_answer


@pytest.mark.parametrize(
    ("wrapped", "bare"),
    [
        ("42", "42"),
        (" $42$ ", "42"),
        ("$$x^2$$", "x^2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"$\boxed{7}$", "7"),
        (r"\boxed{1}+\boxed{2}", r"\boxed{1}+\boxed{2}"),
        ("$1$ and $2$", "$1$ and $2$"),
        ("", ""),
    ],
)
def test_answers_are_unwrapped(wrapped, bare):
    assert strip_answer(wrapped) == bare


@pytest.mark.parametrize(
    ("reasoning", "statement"),
    [
        ("x = 3.\n", r"So it is \boxed{3}."),
        ("We add 1.5 and 1.5. ", r"The sum is \boxed{3}."),
        ("7+5=12\n\n", "**Final Answer**\n\\boxed{12}"),
        ("7+5=12\n", "The final answer is:\n\n$$\n\\boxed{12}\n$$"),
        ("7+5=12\n", "### Answer\nThere are \\boxed{12} ways."),
        ("", r"7+5=\boxed{1"),
        # The last box that holds something, wherever it stands.
        ("\\boxed{1}? No.\nWait.\n", "\\boxed{2} is better.\nI put it in \\boxed{}."),
        # Without a box only the last line can state an answer.
        ("6*7=42\n", "#### 42\n"),
        ("6*7 is 42. ", "The answer is 42."),
        ("6*7 is 42.\n", "Answer: 42"),
        ("6*7 is 42.\n", "**Final Answer**\n\n42"),
        ("6*7=42\n", "A: 42"),
        ("6*7=42\n", "The answer is 42, not 41."),
        ("6*7=42\nSo the answer is not 42", None),
        ("6*7=42\nThe final answer cannot be 42", None),
        ("6*7=42\nThe final answer can't be 42", None),
        ("The answer is 5? Let me check.\n7 + 5 = 12", None),
        (r"I put it in \boxed{}", None),
        ("---\n12", None),
        ("", None),
    ],
)
def test_where_a_response_begins_to_state_its_answer(reasoning, statement):
    assert answer_start(reasoning + (statement or "")) == (
        None if statement is None else len(reasoning)
    )


@pytest.mark.parametrize("part", ["\n", "\\boxed{", "the answer is ", "**\n"])
def test_looking_for_an_answer_takes_no_longer_than_reading(part):
    """Sixteen times the text would take 256 times as long if each place were compared with all
    others.
    """

    def seconds(repeats):
        start = time.process_time()
        for _ in range(5):
            answer_start(part * repeats + "1")
        return time.process_time() - start

    seconds(1000)
    assert seconds(16_000) < 64 * max(seconds(1000), 1e-3)


@pytest.mark.parametrize(
    ("text", "stated"),
    [
        (r"\boxed{2} and \boxed{}", "2"),
        ("4a-2", "4a-2"),
        ("Step 3", None),
        ("the answer cannot be 42", None),
        (r"\boxed{}. 7", None),
        (r"\boxed{7", None),
    ],
)
def test_the_stated_answer(text, stated):
    assert stated_answer(text) == stated


@pytest.mark.parametrize(
    ("thought", "statement"),
    [
        ("6*7=42\n", "The answer is 42."),
        ("We get 6*7=42\n", None),
        ("We get 6*7=42: it is \\boxed{4", None),
        # With a box, all of it: the parser joins neighbouring boxes.
        ("", "x=\\boxed{1}\nand y=\\boxed{2}\nas asked"),
    ],
)
def test_what_of_an_open_thought_is_graded(thought, statement):
    assert final_statement(thought + (statement or "")) == statement


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("½", r"\frac{1}{2}"),
        ("x²", "x^{2}"),
        ("x⁻¹", "x^{-1}"),
        ("√2", r"\sqrt{2}"),
        ("2√(x+1)", r"2\sqrt{x+1}"),
        ("√(√7)", r"\sqrt{\sqrt{7}}"),
        ("√{5}", r"\sqrt{5}"),
        ("90°", r"90^{\circ}"),
        ("(\u2212∞, 2]", r"(-\infty , 2]"),
        ("\uff17\uff12", "72"),
        ("Köln", "Köln"),
    ],
)
def test_unicode_becomes_latex(text, latex):
    assert write_latex(text) == latex


@given(st.text(alphabet="aπ√²½°\u2212(){}7 \uff17i.", max_size=12))
def test_it_is_idempotent(text):
    assert write_latex(write_latex(text)) == write_latex(text)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (r"10\,000", "10000"),
        (r"1{,}234{,}567", "1234567"),
        ("12\u202f345", "12345"),
        (r"(1\,2)", r"(1\,2)"),
        (r"\boxed{6.}", r"\boxed{6}"),
        (r"1.5 and \boxed{$2.5.$}", r"1.5 and \boxed{$2.5$}"),
        (r"\color{red}{6}", "{6}"),
        (r"\textcolor{blue}{x}", "{x}"),
        # An answer's full stop, but not a sentence's, a delimiter's or an ellipsis's.
        (r"\boxed{288\pi.}", r"\boxed{288\pi}"),
        (r"\boxed{p - q.}", r"\boxed{p - q}"),
        (r"\boxed{50\%.}", r"\boxed{50\%}"),
        *(
            (text, text)
            for text in (r"\boxed{\left. x \right.}", r"\boxed{1, 2, ...}", "It is blue.")
        ),
        # Bold type, with its braces unless they hold an index or a macro's argument together; words
        # are text.
        (r"\boldsymbol{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\bm{\mathbf{7}}", "7"),
        (r"\mathbf{\{1,2\}}", r"\{1,2\}"),
        (r"2^\bm{10}", "2^{10}"),
        (r"\pi\mathbf{r} + \pi\bm r", r"\pi{r} + \pi r"),
        (r"\boxed{\mathbf{5}", r"\boxed{5"),
        (r"\mathbf{no solution}", r"\text{no solution}"),
        (r"\mathbfx", r"\mathbfx"),
        ("6+9i", "6+9 i"),
        (r"6+9\mathrm{i}", "6+9 i"),
        ("5in", "5in"),
        ("8 1/2", r"\frac{17}{2}"),
        (r"-8\ 1/2 \text{ cups}", r"-\frac{17}{2} \text{ cups}"),
        ("(1,2 1/2), 3", r"(1,\frac{5}{2}), 3"),
        ("It takes 1,234 1/2 hours.", r"It takes \frac{2469}{2} hours."),
        ("8 1/2°", r"\frac{17}{2}^{\circ}"),
        # Rows of numbers, a date, numbers on lines of their own, powers, a product, an improper
        # fraction.
        *(
            (text, text)
            for text in (
                "3 4/5 6",
                "6 3 4/5",
                "1/2 3/4",
                "3 4/5/2024",
                "3\n4/5",
                "1.8 1/2",
                "8 1/2.5",
            )
        ),
        *(
            (text, text)
            for text in ("8 1/2^2", "x^8 1/2", "x_1 1/2", "8 1/2x", "8 3/2", "0 1/2", "1, 1/2, 3")
        ),
    ],
)
def test_what_latex_spells_in_several_ways(text, plain):
    assert canonical(text) == plain


@pytest.mark.parametrize(
    ("answer", "bare"),
    [
        ("2n.", "2n"),
        (r"\pi.", r"\pi"),
        ("3:30 p.m.", "3:30 p.m"),
        ("1, 2, ...", "1, 2, ..."),
        (r"x \right.", r"x \right."),
    ],
)
def test_a_full_stop_ends_an_answer(answer, bare):
    assert bare_answer(answer) == bare


@given(
    st.integers(0, 999),
    st.text("0123456789", max_size=4),
    st.text("0123456789", min_size=1, max_size=4),
)
def test_repeating_decimals_are_exact(whole, fixed, period):
    r"""Against the series: 0.a\overline{b} is a, and b over and over behind it."""
    above, below = (
        canonical(rf"{whole}.{fixed}\overline{{{period}}}")
        .removeprefix(r"\frac{")
        .rstrip("}")
        .split("}{")
    )
    repeated = Fraction(int(period), 10 ** len(period) - 1)
    assert Fraction(int(above), int(below)) == whole + (int(fixed or "0") + repeated) / 10 ** len(
        fixed
    )


@given(st.integers(1, 9999), st.integers(1, 99), st.integers(1, 99))
def test_mixed_numbers_are_exact(whole, above, below):
    r"""Against the sum that LaTeX's `8\frac{1}{2}` stands for; with an improper fraction it stands
    for none.
    """
    written = canonical(f"{whole} {above}/{below}")
    if above < below:
        top, bottom = map(int, written.removeprefix(r"\frac{").rstrip("}").split("}{"))
        assert Fraction(top, bottom) == whole + Fraction(above, below)
    else:
        assert written == f"{whole} {above}/{below}"


PARTS = [
    "1",
    ".",
    "√",
    "√(",
    "\\color{",
    "1\\,",
    "1\\,000",
    "1. ",
    "²",
    "½",
    "0.\\overline{",
    " ",
    "1 ",
    "8 1/2, ",
]
PARTS += [
    "\\boxed{",
    "\\boxed{1} ",
    "answer: ",
    "answer to ",
    "\n** ",
    "$$",
    "is not ",
    "\\sin 1^\\circ",
]
PARTS += ["\\bm{", "\\bm{ab ", "\\mathbf ", "}", "a.", "\\text{", "€"]


@pytest.mark.parametrize("part", PARTS)
def test_it_takes_linear_time(part):
    started = time.process_time()
    canonical(part * (200_000 // len(part)))
    stated_answer("The answer is: " + part * (200_000 // len(part)))
    assert time.process_time() - started < 2


GSM8K = "Natalia sold 48/2 = <<48/2=24>>24 clips in May.\nTogether 48+24 = <<48+24=72>>72.\n#### 72"


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (GSM8K, "72"),
        ("so\n#### 1,018", "1018"),
        (r"Adding, \boxed{5} or better \boxed{\frac12}.", r"\frac12"),
        (r"\boxed{(1, 2)}", "(1, 2)"),
        (72.0, "72"),  # a column of integers with holes
        (-3.0, "-3"),
        (0.5, "0.5"),
        (math.nan, ""),
        (1e-05, "0.00001"),
        (-2.5e-7, "-0.00000025"),
        (1e16, "10000000000000000"),
        (1.5e22, "15000000000000000000000"),
        (-0.0, "-0"),
        (7, "7"),
        ("72.0", "72"),
        ("\uff17\uff12", "72"),
        ("¾", r"\frac{3}{4}"),
        ("1¾", r"1\frac{3}{4}"),
        ("x²", "x^{2}"),
        ("10²³", "10^{23}"),
        ("\u22123", "-3"),
        ("90°", r"90^{\circ}"),
        ("2√3", r"2\sqrt{3}"),
        ("[0, ∞)", r"[0, \infty )"),
        ("$202$", "$202$"),
        (r"\boxed{}", r"\boxed{}"),
        ("1,000", "1,000"),
        (None, ""),
        (True, ""),
        # Lists, also as text, also with LaTeX that was not escaped.
        (["72"], "72"),
        ([2, "$3$"], "2, 3"),
        (["2", ""], ""),
        ([], ""),
        (r'["\frac{1}{2}"]', r"\frac{1}{2}"),
        (r'["\beta", "\nu"]', r"\beta, \nu"),
        (r"['\theta', '2']", r"\theta, 2"),
        (r'["S\u00e3o Paulo"]', "São Paulo"),
        # Leading zeros of a number, but not of a decimal, in a base or in a text.
        ("033", "33"),
        ("$033$", "$33$"),
        (r"\boxed{-007}", "-7"),
        ("000", "0"),
        ("00.50", "0.50"),
        ('["012", "7"]', "12, 7"),
        ("0101_2", "0101_2"),
        (r"\text{007}", r"\text{007}"),
        # Escaped twice, which a row of a matrix is not.
        (r"12\\%", r"12\%"),
        (r"\\frac{1}{2}\\pi", r"\frac{1}{2}\pi"),
        (r"\begin{matrix}1\\2\end{matrix}", r"\begin{matrix}1\\2\end{matrix}"),
        ('["165"]', "165"),
        ("('2', '3')", "2, 3"),
        # Escapes of JSON and HTML, and quotes.
        *((quoted, "42") for quoted in ('"42"', "`42`", "\u201c42\u201d")),
        (r"\u221a2", r"\sqrt{2}"),
        (r"1\/2", "1/2"),
        ("x &lt; 3", "x < 3"),
        ("1 & 2", "1 & 2"),
        (r'["\\frac{1}{2}"]', r"\frac{1}{2}"),
        ('["1", "2"]', "1, 2"),
        ('["a" and [1]', '["a" and [1]'),
        ("[165]", "[165]"),
    ],
)
def test_the_normal_form(given, normal):
    assert normal_answer(given) == normal
    assert normal_answer(normal) == normal


def test_the_grader_agrees_with_every_normal_form(monkeypatch, tmp_path):
    answers = {
        "¾": "0.75",
        "1¾": "1.75",
        "x²": "xx",
        "\uff17\uff12": "72",
        "10²": "100",
        GSM8K: "72",
    }
    answers |= {1e-05: "10^{-5}", 1e16: "10^{16}"}
    grader = Grader()
    pairs = [(f"\\boxed{{{right}}}", normal_answer(given)) for given, right in answers.items()]
    assert all(grade.correct for grade in grader.grade_many(pairs))
    grader.close()
    normal = [normal_answer(given) for given in answers]
    monkeypatch.setattr(rows, "remembered_file", lambda: tmp_path / "good" / "answers.jsonl")
    assert find_gradable([*normal, *normal, "$ $", ""], "test") == set(normal)
    # Asked again, also among others: only what was not found good is parsed.
    asked = []
    monkeypatch.setattr(
        Grader, "is_gradable", lambda _, part: asked.extend(part) or [False] * len(part)
    )
    assert find_gradable([normal[0], "$ $", "7_7"], "test") == {normal[0]}
    assert asked == ["$ $", "7_7"]


def test_another_grader_remembers_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = rows.remembered_file()
    assert before.parent == tmp_path / "openrlhf_swap"
    monkeypatch.setattr(rows, "version", lambda _: "another")
    assert rows.remembered_file() != before


PLACEHOLDERS = (
    *("proof", "Not found.", "N/A", "-", "?", "(see solution)", r"\text{None}", "NaN", "null"),
    *("see the solution", "—", "Q.E.D.", "…", "Answers may vary", "proof by parity", "略", "QED"),
    *(
        r"$\blacksquare$",
        "notfound",
        "to be proven",
        "Varies",
        "See figure below",
        "Explanations will vary.",
    ),
    *(
        "open-ended",
        "Not specified",
        "your answer here",
        "Hence proved.",
        "[image]",
        "証明せよ",
        "prueba",
        "答案略",
    ),
    *(
        "略。",
        "详见解析",
        "答案不唯一",
        "証明略",
        "풀이 참조",
        "см. решение",
        "voir la solution",
        "siehe Lösung",
    ),
    "ver solución",
)


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("$ $", EMPTY_ANSWER),
        ("1+" * 150 + "1", LONG_ANSWER),
        ("He sold 48 eggs", PROSE_ANSWER),
        ("The answer is 42", PROSE_ANSWER),
        ("seventy two clips sold in April and May", PROSE_ANSWER),
        *((answer, PLACEHOLDER_ANSWER) for answer in PLACEHOLDERS),
        *(
            (answer, None)
            for answer in (
                "No solution",
                "True",
                "none of these",
                "above",
                "open",
                "A",
                "Answer: A",
                "(-)",
            )
        ),
        # Answers of the benchmarks and of the training pools.
        ("East", None),
        ("7 minutes and 5 seconds", None),
        (r"5225 \text{ cubic inches}", None),
        (r"\text{two lines}", None),
        (r"\frac{\sin x}{\cos x}", None),
        *(
            (answer, None)
            for answer in ("no solution", "n", r"\emptyset", r"\text{unknot}", "+", "undefined")
        ),
    ],
)
def test_what_is_no_answer(answer, fault):
    assert visible_fault(answer) == fault
    assert visible_fault(answer, keeps_placeholders=True) == (
        None if fault == PLACEHOLDER_ANSWER else fault
    )


def test_examples_show_what_was_made_of_what():
    """Odd ones first, wherever they stand."""
    pairs = [(GSM8K, "72"), (GSM8K, "72"), ("$3$", "$3$"), (4, "4"), (5.0, "5"), (6, "6"), (7, "7")]
    assert examples(pairs) == [
        "'72' (from '...ther 48+24 = <<48+24=72>>72.\\n#### 72')",
        "'5' (from '5.0')",
        "'3' (from '$3$')",
        "'4'",
        "'6'",
    ]
