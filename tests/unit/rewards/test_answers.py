import time

import pytest

from openrlhf_swap.rewards.answers import answer_start, final_statement, stated_answer, strip_answer


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
    assert answer_start(reasoning + (statement or "")) == (None if statement is None else len(reasoning))


@pytest.mark.parametrize("part", ["\n", "\\boxed{", "the answer is ", "**\n"])
def test_looking_for_an_answer_takes_no_longer_than_reading(part):
    """Sixteen times the text would take 256 times as long if each place were compared with all others."""

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
