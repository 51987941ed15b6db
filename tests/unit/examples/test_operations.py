import random
import re
from collections import Counter
from fractions import Fraction
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from operations import (
    LARGEST,
    OPERATIONS,
    TASKS,
    Operation,
    Problem,
    chain,
    equation,
    from_row,
    problems,
    story,
)
from thoughts import CLOSE, END, OPEN, classify, overthink, response_of, shortest, thought_of

from openrlhf_swap.rewards import grade_answer


def solved(problem):
    """The answer, worked out from the question alone, in another way than ours; None for a story."""
    if problem.task in ("chains", "sums"):
        terms = problem.question.removeprefix("What is ").removesuffix("?").replace(" ", "")
        return sum(int(term) for term in re.findall(r"[+-]?\d+", terms))
    if problem.task == "equations":
        left, right = problem.question.rpartition(": ")[2].split(" = ")
        at = [
            sum(_linear(term, x) for term in re.findall(r"[+-]?[^+-]+", left.replace(" ", "")))
            for x in (0, 1)
        ]
        return (int(right) - at[0]) / Fraction(at[1] - at[0])
    if problem.task == "legs":
        animals = pytest.importorskip("reasoning_gym.arithmetic.leg_counting").ANIMALS
        kinds = re.findall(r"(\d+) ([a-z ]+?)s?(?=,|\?)", problem.question.partition(" have ")[2])
        legs = [
            int(n) * animals.get(kind, animals.get(f"{kind}s", animals.get(f"{kind}u")))
            for n, kind in kinds
        ]
        return sum(legs)
    return None


def _linear(term, x):
    """A term such as +8*t or -3, with x for the unknown."""
    factor, times, _ = term.partition("*")
    return int(factor) * (x if times else 1)


@pytest.mark.parametrize("task", TASKS)
def test_problems_of_reasoning_gym(task):
    """Answers against an independent computation and the grader; sizes; no two alike."""
    pytest.importorskip("reasoning_gym", reason="installed by examples/smollm2/run.sh")
    found = list(islice(problems(task, 3), 150))
    assert found == list(islice(problems(task, 3), 150))
    assert (
        len({problem.operations for problem in found})
        == len({problem.question for problem in found})
        == 150
    )
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
    found = story(
        entry(question, "The brother has 17-4=13 books.\nTogether 17 + 13 = 30.\n#### 30")
    )
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


SPIDERS, DUCKS = (
    Operation(3, "*", 8, "one spider has 8 legs"),
    Operation(5, "*", 2, "one duck has 2 legs"),
)
LEGS = Problem("legs", "How many legs ...?", (SPIDERS, DUCKS, Operation(24, "+", 10)))
CHAIN = Problem("chains", "What is 23 + 60 - 71?", (Operation(23, "+", 60), Operation(83, "-", 71)))


@st.composite
def chains(draw):
    """Sums and differences whose operations are all different."""
    total, parts = draw(st.integers(0, 99)), []
    for _ in range(draw(st.integers(2, 4))):
        number = draw(st.integers(0, 99))
        parts.append(
            Operation(total, "-" if number <= total and draw(st.booleans()) else "+", number)
        )
        total = parts[-1].result
    keys = {part.key for part in parts}
    return Problem("chains", "", tuple(parts)) if len(keys) == len(parts) else LEGS


def labels(problem, *lines):
    response = OPEN + "\n".join(lines) + "\n" + CLOSE + "12" + END
    return [sentence.label for sentence in classify(response, problem.operations)]


def test_the_shortest_response_by_hand():
    assert (
        shortest(CHAIN)
        == "<think>\n23 + 60 = 83.\n83 - 71 = 12.\n</think>\n\nThe answer is \\boxed{12}.<|im_end|>"
    )
    assert thought_of(shortest(LEGS)).splitlines() == [
        "One spider has 8 legs, so 3 * 8 = 24.",
        "One duck has 2 legs, so 5 * 2 = 10.",
        "24 + 10 = 34.",
    ]


def test_labels_of_a_thought_with_a_slip_by_hand():
    assert labels(
        CHAIN,
        "Okay, let me work this out step by step.",  # redundant
        "First, 23 plus 60 is 84.",  # essential
        "Hmm, I am not sure about that.",  # redundant
        "Wait, let me check: 23 + 60 = 83, not 84.",  # useful: another result
        "Is that right? adding 60 and 23 gives 83, so that was right.",  # redundant: the same
        "Then taking 71 from 83 leaves 12.",  # essential
        "So the answer is 12.",  # redundant
    ) == ["redundant", "essential", "redundant", "useful", "redundant", "essential", "redundant"]


def test_labels_of_a_thought_that_starts_over_by_hand():
    assert labels(
        LEGS,
        "To start, one spider has 8 legs, so multiplying 3 by 8 gives 24.",  # essential
        "Let me start over.",
        "3 times 8 is 24.",  # repeated
        "5 * 2 = 10.",  # essential
        "",
        "Spiders are nice.",  # not of the grammar
        "24 + 10 = 34",  # without its full stop
        "24 + 10 = 34.",  # essential: what stood before was no sentence
        "24 - 10 = 14.",  # the solution does not have it
        "10 plus 24 is 34.",  # the same in the other order
    ) == [
        "essential",
        "redundant",
        "redundant",
        "essential",
        "other",
        "other",
        "essential",
        "other",
        "redundant",
    ]


@given(chains(), st.integers(0, 2**31))
def test_overthinking_changes_nothing_and_is_read_by_the_classifier(problem, seed):
    """All operations are there once, every slip is mended, and the answer is right."""
    written = overthink(problem, random.Random(seed))
    assert classify(response_of(written, problem.answer), problem.operations) == written
    counts = Counter(sentence.label for sentence in written)
    assert counts["essential"] == len(problem.operations) and counts["other"] == 0
    slips = sum(", not " in sentence.text for sentence in written)
    assert counts["useful"] == slips
    assert response_of(written, problem.answer).endswith(f"\\boxed{{{problem.answer}}}.<|im_end|>")


def test_thoughts_overthink_and_slip_as_often_as_they_should():
    written = [overthink(CHAIN, random.Random(seed)) for seed in range(2000)]
    counts = Counter(sentence.label for thought in written for sentence in thought)
    assert 1.8 < sum(counts.values()) / counts["essential"] < 4
    assert 0.05 < counts["useful"] / counts["essential"] < 0.11  # 0.08 of the operations
    texts = {sentence.text for thought in written for sentence in thought}
    assert len(texts) > 100
