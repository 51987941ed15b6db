"""What a response states as its answer, and where it begins to."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap.rewards.choices import stated_letter
from openrlhf_swap.rewards.forms import TABLES
from openrlhf_swap.rewards.graded_text import text_after_thought
from openrlhf_swap.rewards.statements import answer_start, last_boxed, stated_answer

BOXES = [
    (r"so \boxed{42}.", "42"),
    (r"<answer>\boxed{12}</answer>", "12"),
    (r"=> \boxed{12}", "12"),
    (r"$\boxed7$, or rather \fbox {8}", "8"),
    (r"First \boxed{16}. Twice that: \framebox{32}", "32"),
    (r"$\boxed{3}$ and $\boxed{4}$", "3, 4"),
    (r"\boxed{3}. No: \boxed{4}", "4"),
    (r"\boxed{2} and \boxed{}, \boxed{...}", "2"),
    # Prose cannot deny a box, and states nothing beside it.
    (r"It is not \boxed{42}.", "42"),
    (r"Is it \boxed{42}?", "42"),
    (r"\boxed{3}. The final answer is $4$.", "3"),
    # The sign before it in one formula belongs to it.
    (r"Hence $x > \boxed{12}$", "x > 12"),
    # A box that was cut off takes back the one before it.
    (r"First \boxed{16}. Twice that: \boxed{32", None),
    (r"\boxed{16}, \boxed", None),
    # A box that holds prose is read as prose.
    (r"\boxed{We find that $x < 3$.}", "x < 3"),
    (r"\boxed{the set is empty}", "the set is empty"),
]
ANNOUNCED = {
    "The answer is": [
        ("The answer is x^2+1", "x^2+1"),
        ("The answer to the second question is 42 apples.", "42 apples"),
        ("The answer, as computed, is (2, 3).", "(2, 3)"),
        ('{"answer": "(2, 3)"}', "(2, 3)"),
        ("**Final answer:** `58`", "58"),
        ("The final answer is:\n$$\n\\sqrt{2}\n$$\nas asked in 7", "\n\\sqrt{2}\n"),
        ("The answer is 41. No, the answer is 42.", "42"),
        ("The answer is 5, not 6.", "5"),
        ("The answer is not 5, it is 6.", "6"),
        ("The answer is not 5 but 6.", "6"),
        ("Final answer - B", "B"),
        ("The answer is therefore 12.", "12"),
        ("The answer is found to be 12.", "12"),
        ("The answer is clearly 12.", "12"),
        ("The answer must then be 12.", "12"),
        ("The answer comes out to 12.", "12"),
        ("The answer is, of course, 12.", "12"),
        ("The answer is 12, as only 3 satisfies the condition.", "12"),
        ("The answer is 12, because only 3 works.", "12"),
        ("The answer is hardly 12.", "hardly 12"),
        ('{"final_answer": 12, "steps": 3}', "12"),
        ('{"answer": "12", "confidence": 0.9}', "12"),
        ("{'answer': '12', 'steps': 3}", "12"),
        ("The answer is less than 42.", "less than 42"),
    ],
    "<answer>, [ANSWER]": [("<answer>\n16\n</answer>", "16"), ("[ANSWER] 16 [/ANSWER]", "16")],
    "#### of GSM8K": [("so\n#### 72", "72")],
    "A:": [("A: 26", "26")],
    "Answer $5$": [("Answer $5$", "$5$")],
    "a heading": [("### Answer\n\n12", "12"), ("**Final Answer**\n\n12", "12")],
    "I choose": [("I'd go with B.", "B"), ("I would say B", "B")],
    "答案是": [("故答案为\uff1a$31$", "$31$"), ("答\uff1a一共有12个。", "12个")],
    "C remains": [
        ("It must be C rather than B.", "C"),
        ("Only D remains.", "D remains"),
        ("That rules out C, leaving D", "D"),
        ("Eliminating A and B leaves C.", "C"),
        ("So it's B.", "B"),
    ],
    "other languages": [
        ("Antwort: 12", "12"),
        ("La réponse est 18.", "18"),
        ("La respuesta es -4.", "-4"),
        ("Ответ: 75.", "75"),
        ("答えは9です。", "9"),
        ("정답: 31", "31"),
        ("Odpowiedź: 12", "12"),
        ("Svaret är 12.", "12"),
        ("Đáp án là 12.", "12"),
        ("Das Endergebnis ist 12.", "12"),
    ],
    "B is correct, only 12 remains": [
        ("Therefore, $12$ is the final answer.", "$12$"),
        ("√2 is correct.", "√2"),
        ("11 and 13 are odd, so only 12 remains.", "12"),
        ("So $12$ is the only option left.", "$12$"),
    ],
    "选 B": [("故选B。", "B")],
}


def test_every_announcement_of_the_table_has_a_case():
    assert [*ANNOUNCED] == [*TABLES["announcements"]]


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize(
    ("text", "stated"), BOXES + [case for cases in ANNOUNCED.values() for case in cases]
)
def test_boxes_and_announcements(text, stated, closed):
    has_lines_behind = text.endswith("in 7")
    if closed or not has_lines_behind:
        assert stated_answer(text, closed) == stated


@pytest.mark.parametrize(
    ("text", "after_thought", "in_thought"),
    [
        # Nothing but an answer.
        ("4a-2", "4a-2", "4a-2"),
        ("**[0, 1)**", "[0, 1)", "[0, 1)"),
        ("$28$ percent", "$28$ percent", "$28$ percent"),
        ("Step 3", None, None),
        ("I do not know", None, None),
        ("", None, None),
        # The last line of what follows a closed thought.
        ("There are 7 ways, since 3+4=7.", "7", None),
        ("It must be a multiple of 6. We get $12$.", "12", None),
        ("Only 12 remain on Monday. Then she buys 5, so there are 17.", "17", None),
        ("It ends at 8:05.", None, None),
        ("Adding the columns\ngives 919 in total.", "919 in total", None),
        (r"We find that $x \lt 3$.", r"x \lt 3", None),
        ("It is less than 42.", None, None),
        ("Two of them are odd, which leaves 12.", "12", None),
        ("So the number must be 12.", "12", None),
        ("The value is unknown.", None, None),
        *((f"The value is {value}.", value, None) for value in ["½", "∛5", "±2", "+∞", "θ"]),
        ("The length is ≈ 3.2", "≈ 3.2", None),
        ("Is it 42?", None, None),
        ("We add.\nx = 42", "x = 42", None),
        # In a thought that was never closed only the last line announces.
        ("The answer is 5? Let me check.\n7 + 5 = 12", "5? Let me check", None),
        ("So 6*7 = 42. The answer is", None, None),
    ],
)
def test_prose(text, after_thought, in_thought):
    assert stated_answer(text, closed=True) == after_thought
    assert stated_answer(text, closed=False) == in_thought


@pytest.mark.parametrize(
    ("reasoning", "statement"),
    [
        ("x = 3.\n", r"So it is \boxed{3}."),
        ("We add 1.5 and 1.5. ", r"The sum is \boxed{3}."),
        ("7+5=12\n\n", "**Final Answer**\n\\boxed{12}"),
        ("7+5=12\n", "The final answer is:\n\n$$\n\\boxed{12}\n$$"),
        ("", r"7+5=\boxed{1"),
        # The last box that holds something, wherever it stands.
        ("\\boxed{1}? No.\nWait.\n", "\\boxed{2} is better.\nI put it in \\boxed{}."),
        # Without a box only the last line can state an answer.
        ("6*7=42\n", "#### 42\n"),
        ("6*7 is 42. ", "The answer is 42."),
        ("6*7 is 42.\n", "**Final Answer**\n\n42"),
        ("6*7=42\nThe final answer cannot be 42", None),
        (r"I put it in \boxed{}", None),
        ("---\n12", None),
        ("", None),
    ],
)
def test_where_a_response_begins_to_state_its_answer(reasoning, statement):
    expected = None if statement is None else len(reasoning)
    assert answer_start(reasoning + (statement or "")) == expected


OPTIONS = ("Rome", "London", "Paris", "Oslo")
# Responses that state the letter C, and those that state none.
STATE_C = r"""
so \boxed{C} | \boxed{\text{c}} | \boxed{\textbf{(C)} 12} | \boxed{C. 42 J}
\boxed{\left(C\right)} | \boxed{\bf C} | \boxed{C \quad 7} | \boxed{C\,}
\boxed{A}, no: \boxed{C} | \boxed{\text{Answer: C}} | \boxed{\text{paris}} | Answer: C
**Answer: (C)** | Answer: $\boxed{C}$ | (c) | C. | Answer: c | ANSWER: C
The correct option is C. | <answer>C</answer> | <answer>Paris</answer> | 答案是C
The answer is C, not A. | The answer is C because A is wrong. | 正确选项是C | C is correct.
I choose C. | 故选C | Answer: [C] | Answer: C (the third) | Therefore, C is the correct answer.
The answer is not A, it is C. | So C. | Not A, not B: C. | Not A, not B, so C.
Neither A nor B: C | Not A or B, but C. | Not A, B or D: C | The answer is not A, not B: C.
"""
STATE_NONE = r"""
\boxed{A} or \boxed{C} | \boxed{(A) \text{ or } (C)} | \boxed{London or Paris}
\boxed{A}, no: \boxed{C | The answer is A, B, C, D | Answer: A; C | Answer: A-C
Answer: A good one would be B | The answer is not C. | Answer: either A or C | So A or C.
So A is wrong. | So a good choice | Therefore, B is the wrong answer.
Not A, not B. | Not A: B or C | A is 5 | A is 5, C is 7
A prime is needed, so look at 7. | The answer is a matter of taste | I think so
"""
LETTERS = [(text, "C") for text in STATE_C.strip().replace("\n", " | ").split(" | ")]
LETTERS += [(text, None) for text in STATE_NONE.strip().replace("\n", " | ").split(" | ")]
LETTERS += [
    ("We get \\boxed{x \\ll y}.\n\n**Answer: C**", "C"),
    ("### Answer\nC", "C"),
    ("C\n\nBecause 7 is a prime and the others are not.", "C"),
    ("A is wrong.\nTherefore, **C**", "C"),
    ("", None),
]


@pytest.mark.parametrize(("text", "letter"), LETTERS)
def test_the_letter_that_is_stated(text, letter):
    assert stated_letter(text, OPTIONS) == letter


def slow_last_boxed(text):
    for match in reversed(list(re.finditer(r"\\boxed\s*\{", text))):
        depth = 1
        for end in range(match.end(), len(text)):
            depth += (text[end] == "{") - (text[end] == "}")
            if depth == 0:
                return text[match.end() : end]
    return None


@given(st.lists(st.sampled_from(["\\boxed{", "\\boxed ", "{", "}", "a"]), max_size=14))
def test_the_last_box_against_a_slow_search(parts):
    assert last_boxed("".join(parts)) == slow_last_boxed("".join(parts))


def test_text_after_the_first_closing_tag():
    assert text_after_thought("a</think>b</think>c", "</think>") == "b</think>c"
    assert text_after_thought("abc", "</think>") == "abc"
    # Tokens that a family puts around its answer are no part of it.
    tokens = "a[/THINK]<|START_TEXT|> b<|END_TEXT|><|END_OF_TURN_TOKEN|>"
    assert text_after_thought(tokens, "[/THINK]") == "b"
    assert text_after_thought("\n" * 50_000 + "<|x|> " * 9, "</think>") == ""
