import re
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import LARGEST, OPERATIONS, TASKS, Operation, chain, equation, from_row, problems, story

from openrlhf_swap.rewards import grade_answer

TASK = pytest.mark.parametrize("task", TASKS)


def solved(problem):
    """The answer, worked out from the question alone, in another way than ours; None for a story."""
    if problem.task in ("chains", "sums"):
        terms = problem.question.removeprefix("What is ").removesuffix("?").replace(" ", "")
        return sum(int(term) for term in re.findall(r"[+-]?\d+", terms))
    if problem.task == "equations":
        left, right = problem.question.rpartition(": ")[2].split(" = ")
        at = [sum(_linear(term, x) for term in re.findall(r"[+-]?[^+-]+", left.replace(" ", ""))) for x in (0, 1)]
        return (int(right) - at[0]) / Fraction(at[1] - at[0])
    if problem.task == "legs":
        animals = pytest.importorskip("reasoning_gym.arithmetic.leg_counting").ANIMALS
        kinds = re.findall(r"(\d+) ([a-z ]+?)s?(?=,|\?)", problem.question.partition(" have ")[2])
        legs = [int(n) * animals.get(kind, animals.get(f"{kind}s", animals.get(f"{kind}u"))) for n, kind in kinds]
        return sum(legs)
    return None


def _linear(term, x):
    """A term such as +8*t or -3, with x for the unknown."""
    factor, times, _ = term.partition("*")
    return int(factor) * (x if times else 1)


@TASK
def test_problems_of_reasoning_gym(task):
    """Answers against an independent computation and the grader; sizes; no two alike."""
    pytest.importorskip("reasoning_gym", reason="installed by examples/smollm2/run.sh")
    found = list(islice(problems(task, 3), 150))
    assert found == list(islice(problems(task, 3), 150))
    assert len({problem.operations for problem in found}) == len({problem.question for problem in found}) == 150
    for problem in found:
        expected = solved(problem)
        assert expected is None or expected == problem.answer
        assert len(problem.operations) in OPERATIONS and 0 <= problem.answer <= LARGEST
        assert from_row(problem.row()) == problem
    assert grade_answer(f"\\boxed{{{found[0].answer}}}", found[0].row()["answer"]).correct


def test_a_chain_by_hand():
    found = chain({"metadata": {"expression": "23 + 20 - 31"}})
    assert found.question == "What is 23 + 20 - 31?"
    assert found.operations == (Operation(23, "+", 20), Operation(43, "-", 31))
    assert found.answer == 12
    assert chain({"metadata": {"expression": "4 - 7 + 5"}}) is None  # below 0 on the way
    assert chain({"metadata": {"expression": "4 + 7"}}) is None  # one operation
    assert chain({"metadata": {"expression": "9 + 40 + 2"}}) is None  # too large


@pytest.mark.parametrize(
    ("text", "operations"),
    [
        ("8*t - 6 = 26", (Operation(26, "+", 6), Operation(32, "/", 8))),
        ("8*h + 2 = 18", (Operation(18, "-", 2), Operation(16, "/", 8))),
        ("30 - 4*t = 2", (Operation(30, "-", 2), Operation(28, "/", 4))),
    ],
)
def test_equations_by_hand(text, operations):
    found = equation({"question": f"Solve for t: {text}", "metadata": {"equation": text}})
    assert found.operations == operations


@pytest.mark.parametrize("text", ["5 - 8*e = -51", "x + 3 = 9", "72*b = 360", "3*x + 2 = 9"])
def test_equations_that_are_left_out(text):
    assert equation({"question": text, "metadata": {"equation": text}}) is None


@given(st.integers(2, 12), st.integers(1, 12), st.integers(1, 12))
def test_an_equation_gives_back_its_unknown(factor, unknown, beside):
    text = f"{factor}*x + {beside} = {factor * unknown + beside}"
    found = equation({"question": text, "metadata": {"equation": text}})
    if factor * unknown + beside > LARGEST:
        assert found is None
    else:
        assert found.answer == unknown


def entry(question, solution):
    return {
        "question": f"{question} Give the result as your final answer. Do not include units.",
        "metadata": {"answer_cot": solution},
    }


def test_a_story_by_hand():
    question = "Ann has 17 books. Her brother has 4 fewer. How many have they together?"
    found = story(entry(question, "The brother has 17-4=13 books.\nTogether 17 + 13 = 30.\n#### 30"))
    assert found.question == question
    assert found.operations == (Operation(17, "-", 4), Operation(17, "+", 13))


@pytest.mark.parametrize(
    "solution",
    [
        "17-4=12, 17+12=29",  # wrong
        "17-5=12, 17+12=29",  # of a number that the question does not name
        "17-4=13, 17*4=68",  # the first result is not used
        "17*0.25=4, 17+4=21",  # a fraction
    ],
)
def test_stories_that_are_left_out(solution):
    assert story(entry("Ann has 17 books. Her brother has 4 fewer.", solution)) is None


def test_a_division_with_a_rest_has_no_result():
    with pytest.raises(ValueError, match="7 / 2"):
        _ = Operation(7, "/", 2).result
