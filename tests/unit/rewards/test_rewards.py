"""The grader's verdicts, and the reward function that OpenRLHF calls."""

import os
import subprocess
import sys

import numpy as np
import pytest
from support.paths import ROOT

from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards import Grade
from openrlhf_swap.rewards.openrlhf_reward import reward_func

RIGHT = Grade(True, "ok", score=1.0)
WRONG = Grade(False, "ok")
NONE = Grade(False, "no_answer")
STATUSES = ("no_answer", "timeout", "error", "slow")


@pytest.mark.parametrize(
    ("response", "answer", "grade"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", RIGHT),
        (r"so \boxed{41}", "42", WRONG),
        (r"\boxed{the set is empty}", "the set is empty", RIGHT),
        ("I do not know", "42", NONE),
        ("", "42", NONE),
        (r"\boxed{42}", "", Grade(False, "error")),
        # A mixed number is a sum: math-verify takes 8 1/2 for 9/2.
        (r"\boxed{8 1/2}", "8.5", RIGHT),
        # A comma separates two answers: data sets for English readers write no decimal with it.
        (r"\boxed{1.2}", "1,2", WRONG),
        # After a thought the last line can state an answer without announcing it.
        ("</think>Let me see whether 7 and 5 are 42", "41", WRONG),
        ("</think>Let me see 7 and 5, and", "12", NONE),
        # In a thought that was never closed, a number is no answer.
        ("It is 42.", "42", NONE),
        ("Let me see: 7 and 5 make 41. The answer is 41.", "42", WRONG),
        # What stands before the end of the thought is not the answer.
        (r"maybe \boxed{42}</think>so \boxed{41}", "42", WRONG),
        # An unfinished thought is graded by what it states.
        (r"\boxed{1} or rather \boxed{2}", "2", RIGHT),
    ],
)
def test_grades(grader, response, answer, grade):
    assert grader.grade(response, answer) == grade


SCRIPT = r"""
from openrlhf_swap.rewards import grade_answer

print("start")
print(grade_answer(r"so \boxed{0.5}", r"\frac12"))
"""
NOTEBOOK = "import code, sys; code.InteractiveInterpreter().runcode(sys.argv[1])"


def test_grading_needs_no_main_module(tmp_path):
    """A notebook's cells run in a main module that has no file."""
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    command = [sys.executable, "-c", NOTEBOOK, SCRIPT]
    result = subprocess.run(command, **options, capture_output=True, text=True, check=True)
    assert result.stdout == "start\nGrade(correct=True, status='ok')\n"
    assert result.stderr == ""


def test_the_reward_function_grades_the_response_alone():
    prompt = r"Put your answer in \boxed{}. Is it \boxed{42}?<think>"
    graded = reward_func([prompt + r"no</think>\boxed{41}"], [prompt], ["42"])
    assert graded["rewards"] == 0.0
    assert graded["scores"] == 0.0
    graded = reward_func(["<bos>" + prompt + r"yes</think>\boxed{42}"], [prompt], ["42"])
    assert graded["rewards"] == 1.0
    logs = graded["extra_logs"]
    assert logs.pop("swap/graded_correct") == 1.0
    assert logs == dict.fromkeys(map("swap/grader_{}".format, STATUSES), 0.0)
    # Evaluation data comes as it is, and may have numbers for answers.
    assert reward_func([prompt + r"yes</think>\boxed{42}"], [prompt], [42])["rewards"] == 1.0
    assert "swap/ungraded" not in graded["extra_logs"]
    unjudged = reward_func([prompt + "yes"], [prompt], [""], grader="none")
    assert unjudged["rewards"] == 0.0
    assert unjudged["extra_logs"]["swap/ungraded"] == 1.0


@pytest.mark.parametrize(
    ("response", "reward"),
    [(r"\boxed{41}[/THINK]\boxed{42}", 1.0), (r"\boxed{42}[/THINK]\boxed{41}", 0.0)],
)
def test_the_reward_function_reads_the_thought_of_another_family(response, reward):
    graded = reward_func(["p " + response], ["p "], ["42"], end_of_thought="[/THINK]")
    assert graded["rewards"] == reward


@pytest.mark.parametrize(("prompt", "label"), [("zzz", "42"), ("p", None), ("p", [42]), ("p", "")])
@pytest.mark.parametrize("query", ["p x", "p \ud800 4"])
def test_the_reward_function_never_raises(query, prompt, label):
    graded = reward_func([query], [prompt], [label])
    assert graded["rewards"] == 0.0
    assert graded["extra_logs"]["swap/grader_error"] == 1.0


ENDS = [
    *("<|im_end|>", "<\uff5cend▁of▁sentence\uff5c>", "</s>", "<eos>", "<end>", "<|endoftext|>\n"),
    *("<end_of_turn>", "<turn|>", "<seed:eos>", "<|END_TEXT|><|END_OF_TURN_TOKEN|>"),
]


@pytest.mark.parametrize("end", ENDS)
def test_the_end_token_is_no_part_of_the_answer(end):
    """Training decodes it, evaluation does not: `East` is graded the same."""
    assert reward_func(["p a</think>East" + end], ["p "], ["East"])["rewards"] == 1.0
    assert reward_func(["p a</think>" + end], ["p "], ["East"])["rewards"] == 0.0


def test_unparsable_answers_are_recognised(grader):
    assert grader.is_gradable(["42", r"\frac{1}{2}", "", " $ $ "]) == [True, True, False, False]


def test_an_answer_may_be_a_number_and_nothing_else(grader):
    assert grader.grade("It is \\boxed{42}.", 42).correct
    assert grader.grade("It is \\boxed{42}.", np.int64(42)).correct
    with pytest.raises(DataError, match="answer is None"):
        grader.grade("42", None)
    with pytest.raises(DataError, match=r"response is \[42\] \(list\)"):
        grader.grade([42], "42")
