import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from support.paths import ROOT

from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards import Grade, grade_answer
from openrlhf_swap.rewards.openrlhf_reward import reward_func

RIGHT = Grade(True, "ok", score=1.0)
WRONG = Grade(False, "ok")


@pytest.mark.parametrize(
    ("response", "answer", "grade"),
    [
        (r"so \boxed{\frac{1}{2}}", "0.5", RIGHT),
        (r"so \boxed{0.5}", r"$\frac12$", RIGHT),
        (r"so \boxed{41}", "42", WRONG),
        ("</think>It is 42.", "42", RIGHT),
        (r"\boxed{(1, 2)}", "(1,2)", RIGHT),
        (r"\boxed{x^2 + 2x + 1}", "(x+1)^2", RIGHT),
        (r"\boxed{the set is empty}", "the set is empty", RIGHT),
        ("I do not know", "42", Grade(False, "no_answer")),
        # A response that is nothing but an answer.
        ("4a-2", "4a-2", RIGHT),
        ("2(2a-1)", "4a-2", RIGHT),
        (r"12\frac{3}{5}", r"12\frac{3}{5}", RIGHT),
        # A mixed number is a sum: math-verify takes 8 1/2 for 9/2.
        (r"\boxed{8\frac{1}{2}}", "8 1/2", RIGHT),
        (r"\boxed{\frac{17}{2}}", "8 1/2", RIGHT),
        (r"\boxed{8 1/2}", "8.5", RIGHT),
        (r"</think>It takes 8 1/2 hours.", "8½", RIGHT),
        (r"\boxed{\frac{9}{2}}", "8 1/2", WRONG),
        (r"\boxed{8 1/2}", "4", WRONG),
        (r"\boxed{1.5, 3}", "1 1/2, 3", RIGHT),
        # A comma separates two answers: data sets for English readers write no decimal with it.
        (r"\boxed{-3,0}", "-3,0", RIGHT),
        (r"\boxed{0,-3}", "-3,0", RIGHT),
        (r"\boxed{-3}", "-3,0", WRONG),
        (r"\boxed{1.2}", "1,2", WRONG),
        ("", "42", Grade(False, "no_answer")),
        (r"\boxed{42}", "", Grade(False, "error")),
        # After a thought the last line can state an answer without announcing it.
        ("</think>Let me see: 7 and 5 make 42, but", "42", RIGHT),
        ("</think>Let me see: 7 and 5 make 41, but", "42", WRONG),
        ("</think>Let me see whether 7 and 5 are 42", "41", WRONG),
        ("</think>Let me see 7 and 5, and", "12", Grade(False, "no_answer")),
        # In a thought that was never closed, a number is no answer.
        ("It is 42.", "42", Grade(False, "no_answer")),
        ("Let me see: 7 and 5 make 42, but", "42", Grade(False, "no_answer")),
        ("Let me see: 7 and 5 make 41, but", "42", Grade(False, "no_answer")),
        ("Let me see: 7 and 5 make 41. The answer is 41.", "42", WRONG),
        # What stands before the end of the thought is not the answer.
        (r"maybe \boxed{42}</think>so \boxed{41}", "42", WRONG),
        (r"maybe \boxed{41}</think>so \boxed{42}", "42", RIGHT),
        # An unfinished thought is graded by what it states.
        (r"maybe \boxed{42}", "42", RIGHT),
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


@pytest.mark.parametrize("way", ["a script without a main guard", "standard input", "a notebook"])
def test_grading_needs_no_main_module(tmp_path, way):
    """A notebook's cells run in a main module that has no file."""
    (tmp_path / "script.py").write_text(SCRIPT)
    words, text = {
        "a script without a main guard": (["script.py"], ""),
        "standard input": (["-"], SCRIPT),
        "a notebook": (
            ["-c", "import code, sys; code.InteractiveInterpreter().runcode(sys.argv[1])", SCRIPT],
            "",
        ),
    }[way]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    result = subprocess.run(
        [sys.executable, *words],
        input=text,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (result.stdout, result.stderr) == ("start\nGrade(correct=True, status='ok')\n", "")


def test_grading_from_threads():
    """OpenRLHF calls the reward function in worker threads."""
    grades = []
    threads = [
        threading.Thread(
            target=lambda i=i: grades.append((i, grade_answer(rf"\boxed{{{i}}}", "3")))
        )
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(grades) == [(i, RIGHT if i == 3 else WRONG) for i in range(8)]


def test_the_reward_function_grades_the_response_alone():
    prompt = r"Put your answer in \boxed{}. Is it \boxed{42}?<think>"
    graded = reward_func([prompt + r"no</think>\boxed{41}"], [prompt], ["42"])
    assert (graded["rewards"], graded["scores"]) == (0.0, 0.0)
    graded = reward_func(["<bos>" + prompt + r"yes</think>\boxed{42}"], [prompt], ["42"])
    assert graded["rewards"] == 1.0
    logs = graded["extra_logs"]
    assert logs.pop("swap/graded_correct") == 1.0
    assert logs == {
        f"swap/grader_{name}": 0.0 for name in ("no_answer", "timeout", "error", "slow")
    }
    # Evaluation data comes as it is, and may have numbers for answers.
    assert reward_func([prompt + r"yes</think>\boxed{42}"], [prompt], [42])["rewards"] == 1.0


def test_a_thought_that_the_prompt_closes_is_closed():
    # In an open thought a number that is not stated as the answer does not count.
    answer = "Tom has 42 apples in total."
    assert reward_func([f"q<think>\n{answer}"], ["q<think>\n"], ["42"])["rewards"] == 0.0
    assert reward_func([f"q<think>\n</think>{answer}"], ["q<think>\n"], ["42"])["rewards"] == 1.0
    assert (
        reward_func([f"q<think>\n</think>{answer}"], ["q<think>\n</think>"], ["42"])["rewards"]
        == 1.0
    )


def test_the_reward_function_reads_the_thought_of_another_family():
    for text, reward in (
        (r"p \boxed{41}[/THINK]\boxed{42}", 1.0),
        (r"p \boxed{42}[/THINK]\boxed{41}", 0.0),
    ):
        assert reward_func([text], ["p "], ["42"], end_of_thought="[/THINK]")["rewards"] == reward


@pytest.mark.parametrize(("prompt", "label"), [("zzz", "42"), ("p", None), ("p", [42])])
def test_the_reward_function_never_raises(prompt, label):
    graded = reward_func(["p x"], [prompt], [label])
    assert (graded["rewards"], graded["extra_logs"]["swap/grader_error"]) == (0.0, 1.0)


ENDS = [
    "<|im_end|>",
    "<\uff5cend▁of▁sentence\uff5c>",
    "</s>",
    "<eos>",
    "<end>",
    "<|end|>",
    "<|endoftext|>\n",
]
ENDS += ["<end_of_turn>", "<turn|>", "<seed:eos>", "<|END_TEXT|><|END_OF_TURN_TOKEN|>"]


@pytest.mark.parametrize("end", ENDS)
def test_the_end_token_is_no_part_of_the_answer(end):
    """Training decodes it, evaluation does not: `East` is graded the same."""
    assert reward_func(["p a</think>East" + end], ["p "], ["East"])["rewards"] == 1.0
    assert reward_func(["p a</think>" + end], ["p "], ["East"])["rewards"] == 0.0


def test_unparsable_answers_are_recognised(grader):
    assert grader.is_gradable(["42", r"\frac{1}{2}", "", " $ $ "]) == [True, True, False, False]


@pytest.mark.parametrize("label", ["4", None, "", float("nan"), ["4"]])
@pytest.mark.parametrize(
    ("query", "prompt"), [("4", ""), ("", ""), ("p 4", "q"), ("p \ud800 4", "p ")]
)
def test_no_prompt_and_no_label_makes_it_raise(query, prompt, label):
    assert reward_func([query], [prompt], [label])["rewards"] in (0.0, 1.0)


def test_an_answer_may_be_a_number_and_nothing_else(grader):
    assert grader.grade("It is \\boxed{42}.", 42).correct
    assert grader.grade("It is \\boxed{42}.", np.int64(42)).correct
    with pytest.raises(DataError, match="answer is None"):
        grader.grade("42", None)
    with pytest.raises(DataError, match=r"response is \[42\] \(list\)"):
        grader.grade([42], "42")
