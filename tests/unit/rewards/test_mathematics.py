"""The math verifier, and the one verdict for every caller. The pairs are in tests/stack."""

import pytest

from openrlhf_swap.rewards import grade_answer
from openrlhf_swap.rewards.comparison import same_answer
from openrlhf_swap.rewards.graded_text import text_to_grade
from openrlhf_swap.rewards.mathematics import find_fault, verify
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rewards.verifiers import THOUGHT_CLOSED


@pytest.mark.parametrize(
    ("gold", "stated", "is_same"),
    [
        # Exact numbers are compared exactly, also in points and with variables.
        (r"2-\frac{1}{2^{99}}", r"2-\frac{1}{2^{100}}", False),
        (r"2-\frac{1}{2^{99}}", r"\frac{2^{100}-1}{2^{99}}", True),
        (r"x+\frac{1}{3^{50}}", r"x+\frac{1}{3^{51}}", False),
        (r"\sqrt{2}+10^{-200}", r"\sqrt{2}", False),
        # Decimal numbers to six places, small ones relatively.
        (r"\frac{1}{3}", "0.333333", True),
        (r"\frac{1}{3}", "0.3333", False),
        (r"1.6 \times 10^{-19}", r"1.7 \times 10^{-19}", False),
        # Letters, primes and dots count.
        ("R-r", "0", False),
        ("e", "E", False),
        (r"1,2,\ldots,10", "1,2,10", False),
        # Chains of equations are read if they are true.
        ("5", "2+3=5", True),
        ("5", "3=5", False),
        (r"\sqrt{2}", r"x = \sqrt{2} \approx 1.414", True),
    ],
)
def test_what_is_compared(gold, stated, is_same):
    assert same_answer(gold, stated) is is_same


def test_which_golds_can_be_graded_against():
    good = ["星期一", r"\text{São Paulo}", r"\tan 15^\circ", r"\{2k\mid k\in\mathbb{Z}\}", "1:2:3"]
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
