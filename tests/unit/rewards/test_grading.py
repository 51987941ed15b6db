"""The math verifier: which answers a response states, and which of them equal the reference answer."""

import pytest

from openrlhf_swap.rewards.grading import find_fault, verify
from openrlhf_swap.rewards.verifiers import THOUGHT_CLOSED


def graded(answer, response, closed=True):
    verdict = verify("", answer, response, {THOUGHT_CLOSED: closed})
    return bool(verdict.correct) if verdict.answered else None


@pytest.mark.parametrize(
    ("answer", "given", "correct"),
    [
        # Exact numbers are compared exactly, also in lists and with variables; others relatively.
        (r"2-\frac{1}{2^{99}}", r"2-\frac{1}{2^{100}}", False),
        (r"2-\frac{1}{2^{99}}", r"\frac{2^{100}-1}{2^{99}}", True),
        (r"(1, 2-\frac{1}{2^{99}})", r"(1, 2-\frac{1}{2^{100}})", False),
        (r"x+\frac{1}{3^{50}}", r"x+\frac{1}{3^{51}}", False),
        (r"x=\frac{1}{3^{50}}", r"\frac{1}{3^{51}}", False),
        (r"\frac{1}{20!}", r"\frac{1}{21!}", False),
        (r"\frac{1}{20!}", r"\frac{21}{21!}", True),
        (r"\frac{(13!)^4}{52!}", r"\frac{4!(13!)^4}{52!}", False),
        (r"1.6 \times 10^{-19}", r"1.7 \times 10^{-19}", False),
        (r"1.6 \times 10^{-19}", r"16 \times 10^{-20}", True),
        (r"\frac{1}{3}", "0.333333", True),
        *(
            (small, "0.0000002", small == "0.00000020004")
            for small in ("0.0000001", "0.00000015", "0.00000020004")
        ),
        (".0000672", ".0000673", False),
        (r"\sqrt{3+2\sqrt{2}}", r"1+\sqrt{2}", True),
        (r"\frac{\sqrt{5}-1}{4}", r"\sin 18^\circ", True),
        ("0.05", r"5\%", True),
        # Degrees inside functions, and outside.
        (r"\tan 15^\circ", r"2-\sqrt{3}", True),
        (r"\sin 1", r"\sin 1^\circ", False),
        (r"\sin^2 30^{\circ}", r"\frac{1}{4}", True),
        (r"\cos(60°)", r"\frac12", True),
        (r"45^\circ", "45", True),
        # Upright names.
        (r"\mathrm{e}^2", "e^2", True),
        (r"2\text{e}", "2e", True),
        (r"\operatorname{ln} 2", r"\ln 2", True),
        (r"\mathrm{sin}(x)", r"\sin x", True),
        (r"\rm e", "e", True),
        (r"\mathsf{x}+1", "x+1", True),
        ("x ∈ \u211d", r"x\in\R", True),
        # Numbers and units of any script.
        ("٤٢", "42", True),
        ("∛8", "2", True),
        ("\u20135", "-5", True),
        ("1 000", "1000", True),
        ("5 км", "5", True),
        ("5", "5 км", True),
        ("5 км", "5 м", False),
        ("5\u00a0км", "6", False),
        ("12平方厘米", "12", True),
        ("12厘米", "12米", False),
        ("20 °C", "20", True),
        ("20 °C", "20 °F", False),
        ("5 metros", "5", True),
        (r"\text{\$}42", "42", True),
        ("42", r"\text{ € }42", True),
        (r"2\sqrt{3}", "2√3 米", True),
        ("9.11e-31", r"9.11\times 10^{-31}", True),
        (r"120^\circ", r"120\degree", True),
        (r"120^\circ", "120^o", True),
        (r"120^\circ", "120^{o}", True),
        (r"16\pi", "16π平方厘米", True),
        (r"16\pi", "16πr", False),
        ("5 θ", "5", False),
        ("E", r"\boxed{E}", True),
        ("e", "E", False),
        # Words of any script.
        ("São Paulo", r"\text{São Paulo}", True),
        ("Sa\u0303o Paulo", r"\text{São Paulo}", True),
        ("São Paulo", r"\text{São Tomé}", False),
        (r"\text{星期一}", "星期一", True),
        ("星期一", "星期二", False),
        # Letters of a choice.
        ("B", r"\textbf{(B)}\ 7", True),
        ("B", "(B) 7", True),
        ("B", r"\text{B: } 7", True),
        ("B", r"\textbf{(C)}\ 7", False),
        ("B", r"\text{(B) or (C)}", False),
        ("(B)", r"\textbf{(B) }7", True),
        (r"\textbf{(B)}\ 7", "B", True),
        (r"\textbf{(B)}\ 7", "C", False),
        # Hedges are wrong for either, lists are not hedges.
        *(
            (number, rf"3 {hedge} 4", False)
            for number in "34"
            for hedge in (r"\vee", "或", r"\text{ or maybe }")
        ),
        *(("3, 4", rf"3 {word} 4", True) for word in (r"\text{ or }", r"\text{ and }", "or")),
        # Two answers are none.
        ("B", r"A \approx B", False),
        ("A", r"A \approx B", False),
        ("4", r"3 \approx 4", False),
        ("4", "x=3=4", False),
        ("3", r"x \approx 3", True),
        (r"\frac13", r"\frac{1}{3} \approx 0.333", True),
        (r"\emptyset", "1<2", False),
        (r"(-\infty, 2)", "x<2", True),
        *(
            (number, rf"3 {sign} 4", False)
            for number in "34"
            for sign in (r"\to", r"\mid", r"\|", r"\leftrightarrow")
        ),
        ("4", r"3\ (\text{or } 4?)", False),
        ("42", r"\ne 42", False),
        ("42", "<42", False),
        # Golds as they are cleaned.
        ("033", "33", True),
        ('["2", "3"]', "3, 2", True),
        (r"12\\%", r"12\%", True),
    ],
)
def test_equality(answer, given, correct):
    assert graded(answer, rf"So \boxed{{{given}}}.") is correct


@pytest.mark.parametrize(
    ("answer", "response", "correct"),
    [
        # The last box alone, or the last ones side by side.
        (r"16", r"First \boxed{16}. Twice that: \boxed{32", None),
        ("3", r"\boxed{3}. The final answer is $4$. I hope it is correct.", True),
        ("4", r"\boxed{3}. The final answer is $4$. I hope it is correct.", False),
        ("3", r"\boxed{3}. No: \boxed{4}", False),
        ("3, 4", r"$\boxed{3}$ and $\boxed{4}$", True),
        ("4", r"$\boxed{3}$ and $\boxed{4}$", False),
        ("3", r"\boxed{3}, in \boxed{...}", True),
        # A box that is denied, asked about, or of another kind.
        ("42", r"It is not \boxed{42}.", None),
        ("42", r"\boxed{42} is wrong.", None),
        ("42", r"Is it \boxed{42}?", None),
        ("42", r"x is not zero, so \boxed{42}", True),
        ("16", r"First \boxed{16}. Twice that: \fbox{32", None),
        ("32", r"First \boxed{16}. Twice that: \framebox{32}", True),
        ("16", r"First \boxed{16}. Twice that: \boxed", None),
        # Announcements.
        ("(2, 3)", "We solve both.\n\nAnswer: (2, 3)", True),
        ("x^2+1", "The answer is x^2+1", True),
        ("1", "The answer is x^2+1", False),
        (r"\text{Monday}", "We count.\n\nThe answer is Monday.", True),
        ("5/7", "Final Answer: **5/7**", True),
        ("58", "**Final answer:** `58`", True),
        ("1/6", "So:\n\n<answer>1/6</answer>", True),
        ("16", "<answer>\n16\n</answer>", True),
        ("12", "### Answer\n\n12", True),
        (r"\sqrt{2}", "The final answer is:\n$$\n\\sqrt{2}\n$$\nas asked in 7", True),
        ("42", "The answer to the second question is 42 apples.", True),
        ("42", "答案是 42。", True),
        ("42", "La réponse est 42.", True),
        ("42", "Die Antwort ist: 42", True),
        ("42", "La respuesta es $42$.", True),
        ("5", "The answer is 5, not 6.", True),
        ("6", "The answer is 5, not 6.", False),
        ("41", "The answer is 41. No, the answer is 42.", False),
        ("(2, 3)", "The answer comes out to (2, 3).", True),
        ("(2, 3)", "The answer comes to be (2, 3).", True),
        ("(2, 3)", "The answer to this problem is (2, 3).", True),
        ("(2, 3)", "The answer, as computed, is (2, 3).", True),
        ("(2, 3)", "__Answer__: (2, 3)", True),
        ("(2, 3)", '{"answer": "(2, 3)"}', True),
        *(
            ("(2, 3)", f"{words} (2, 3).", True)
            for words in (
                "La respuesta correcta es",
                "Jawabannya adalah",
                "Svaret är",
                "La réponse est donc",
                "Ответ равен",
            )
        ),
        *(
            ("(2, 3)", f"{words} (2, 3)", True)
            for words in ("উত্তর:", "Answer -", "[ANSWER]", "The answer is simply")
        ),
        ("7", r"$\boxed7$", True),
        *(
            ("42", f"{words} 42.", None)
            for words in ("La respuesta no es", "Die Antwort ist nicht", "Ответ не")
        ),
        *(
            ("42", f"{words} 42.", None)
            for words in ("The answer is twice", "It's not true that the answer is")
        ),
        ("42", "답은 42가 아닙니다.", None),
        ("42", "If the answer were 42, it were even.", None),
        *((number, "The answer could be 3 or it could be 4.", False) for number in "34"),
        *((number, "Answer: 3. But 4 is also possible.", None) for number in "34"),
        ("Monday", "답은 Monday입니다", True),
        ("Monday", "答えは Monday です。", True),
        ("Monday", "\u0391\u03c0\u03ac\u03bd\u03c4\u03b7\u03c3\u03b7: Monday", True),
        *(
            (number, f"The answer is {hedge}", False)
            for number in "34"
            for hedge in ("3 or 4.", "3 (or maybe 4).")
        ),
        *(
            (number, f"The answer is {hedge}", None)
            for number in "34"
            for hedge in ("3 / 4?", "3. Or 4.")
        ),
        *((number, "The answer is 3, but it could be 4.", None) for number in "34"),
        ("3, 4", "The answer is 3 or 4.", True),
        # What is denied or compared states nothing.
        *(
            ("42", f"The answer is {words} 42.", None)
            for words in ("less than", "at most", "never", "other than")
        ),
        *(
            ("42", f"The answer is {words} 42.", None)
            for words in ("wrong:", r"\ne", ">", "not", "greater than")
        ),
        ("42", r"The answer is $\ne 42$.", None),
    ],
)
@pytest.mark.parametrize("closed", [True, False])
def test_what_a_response_states(answer, response, correct, closed):
    if closed or response.count("\n") == 0:
        verdict = graded(answer, response, closed)
        assert verdict is correct or (not correct and not verdict and not closed)


@pytest.mark.parametrize(
    "response",
    [
        r"I put it in \boxed{...}. 6*7 = 42",
        r"\boxed{?} 42",
        r"I get \boxed{42}. It asks for twice that: \boxed{84",
        "The answer is 42? Let me check.\n6*7 = 42",
        "So 6*7 = 42. The answer is",
    ],
)
def test_an_open_thought_that_states_nothing(response):
    assert graded("42", response, closed=False) is None


def test_which_golds_can_be_graded_against():
    assert (
        find_fault("星期一", {})
        is find_fault(r"\text{São Paulo}", {})
        is find_fault(r"\tan 15^\circ", {})
        is None
    )
    assert (
        find_fault("$ $", {}) == find_fault(r"\frac{1}{", {}) == "an answer that cannot be parsed"
    )


@pytest.mark.parametrize(
    "prose",
    [
        *(
            "42 is not the answer.",
            "It is not 42.",
            "I don't think it's 42.",
            "42 would be wrong.",
            "42? No.",
        ),
        *(
            "x ≠ 42",
            "It is more than 42.",
            "We rule out 42.",
            "Is it 42?",
            "42 fails the condition.",
            "None is 42.",
        ),
        *("It is 41 or 42.", "Maybe 41, maybe 42."),
    ],
)
def test_prose_that_denies_asks_or_wavers_states_nothing(prose):
    assert not graded("42", prose)


@pytest.mark.parametrize(
    ("answer", "prose"),
    [
        ("42", "It is 42, not 41."),
        ("3/8", "So 3/8 is our final answer."),
        ("42", "It's not 41 but 42."),
        ("42", "That cannot be less than 0, so it is 42."),
        ("42", "We find that 42 works.\nThis is not surprising."),
        ("x<3", r"We find that $x \lt 3$."),
        ("(2, 3)", "We solve both.\n\nResultado: (2, 3)"),
        ("x^2+1", "The result is x^2+1."),
        ("[0, 1)", "**[0, 1)**"),
    ],
)
def test_prose_after_a_thought_states_an_answer(answer, prose):
    assert graded(answer, prose)
