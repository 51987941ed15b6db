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
        # Two answers are none.
        ("B", r"A \approx B", False),
        ("A", r"A \approx B", False),
        ("4", r"3 \approx 4", False),
        ("4", "x=3=4", False),
        ("3", r"x \approx 3", True),
        (r"\frac13", r"\frac{1}{3} \approx 0.333", True),
        (r"\emptyset", "1<2", False),
        (r"(-\infty, 2)", "x<2", True),
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
        # What is denied or compared states nothing.
        *(("42", f"The answer is {words} 42.", None) for words in ("less than", "at most", "never", "other than")),
        *(("42", f"The answer is {words} 42.", None) for words in ("wrong:", r"\ne", ">", "not", "greater than")),
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
    assert find_fault("星期一", {}) is find_fault(r"\text{São Paulo}", {}) is find_fault(r"\tan 15^\circ", {}) is None
    assert find_fault("$ $", {}) == find_fault(r"\frac{1}{", {}) == "an answer that cannot be parsed"
