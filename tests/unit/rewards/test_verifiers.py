"""Other verifiers than math-verify: the built-in ones, and functions of one's own."""

import pytest

from openrlhf_swap.data.references import find_faults
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards import Grade, Grader
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import Verdict, find_verifier

RIGHT = Grade(True, "ok", score=1.0)


@pytest.fixture(scope="module")
def graders():
    """Graders by name, kept for the module."""
    made = {}

    def grader(name):
        if name not in made:
            made[name] = Grader(processes=1, time_limit=2.0, verifier=name)
        return made[name]

    yield grader
    for one in made.values():
        one.close()


@pytest.fixture
def grade(graders):
    def run(name, response, answer, problem="p", **metadata):
        return graders(name).grade(response, Reference(answer, problem, metadata))

    return run


def test_multiple_choice_grades_what_follows_the_thought(grade):
    name = "multiple_choice"
    assert grade(name, r"\boxed{B}</think>The answer is (C).", "C") == RIGHT
    assert grade(name, "Answer: B</think>nothing", "C") == Grade(False, "no_answer")
    assert grade(name, "Answer: B</think>so D", "C").stated == "D"
    wrong = grade(name, r"</think>\boxed{B}", "C")
    assert wrong == Grade(False, "ok")
    assert wrong.why == "read B"
    assert wrong.stated == "B"
    # In a thought that was never closed a letter counts only where a final answer is stated.
    assert grade(name, "Take option (C)\nor rather\nanother", "C").status == "no_answer"
    assert grade(name, "Let me see.\nThe answer is (C).", "C").correct


def test_reference_answers_of_a_choice_are_letters_of_options():
    fault = find_verifier("multiple_choice").find_fault
    options = {"options": ["1", "2", "3"]}
    assert fault("C", {}) is None
    assert fault(" c ", options) is None
    assert fault("D", options) == "an answer that is no option's letter"
    assert fault("42", {}) == "an answer that is not a letter"
    assert fault("", {}) == "an answer that is not a letter"


def test_a_pattern_reads_the_answer(grade):
    name = r"regex:Answer: (\w+)"
    assert grade(name, "Answer: 3, or rather Answer: four", "four") == RIGHT
    assert grade(name, "Answer: Four", "four") == Grade(False, "ok")
    assert grade(name, "four", "four") == Grade(False, "no_answer")
    assert grade(r"regex:\d+", "1 then 22", "22").correct
    # A code's zeros are taken off the answers of a data set, and so they are here.
    assert grade(r"regex:\d+", "070000", "70000").correct
    assert not grade(r"regex:\d+", "70001", "70000").correct


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math_verify", "use one of math, multiple_choice, none, regex:PATTERN, or a"),
        ("regex:", "put the pattern after it"),
        ("regex:(", "which is not a regular expression"),
        ("no_such_module:f", "which cannot be imported (No module named 'no_such_module')"),
        ("support.verifiers:absent", "which cannot be imported"),
        ("support.verifiers:__name__", "which is not a function of (problem, answer, resp"),
        ("math:sqrt", "which is not a function of (problem, answer, response, metadata)"),
    ],
)
def test_a_grader_that_does_not_exist(name, message):
    with pytest.raises(ConfigError) as raised:
        find_verifier(name)
    assert str(raised.value).startswith("--swap.grader is ")
    assert message in str(raised.value)


def test_without_answers_nothing_is_judged(grade):
    assert grade("none", "7", "") == Grade(False, "ok")
    assert find_faults([Reference("")], "none", "swap") == [None]


def test_a_function_of_ones_own_gives_part_scores(grade):
    name = "support.verifiers:nearness"
    half = grade(name, "it is 41", "42")
    assert half == Grade(False, "ok", score=0.5)
    assert half.why == "1 off"
    assert grade(name, "it is 41", "42", tolerance=2) == Grade(True, "ok", score=0.5)
    assert grade(name, "</think>42", "42") == RIGHT
    assert grade(name, "no idea", "42") == Grade(False, "no_answer")
    assert grade("support.verifiers:says_problem", "p 42 x", "42", column="x").correct


def test_a_function_that_fails_is_an_error_with_its_reason(grade):
    failed = grade("support.verifiers:crashes", "x", "y")
    assert failed == Grade(False, "error")
    assert failed.why == "KeyError: 'no such thing'"
    failed = grade("support.verifiers:out_of_range", "x", "y")
    assert failed == Grade(False, "error")
    assert "the score is 3.0; a verifier returns one between 0 and 1" in failed.why
    assert grade("support.verifiers:reads_rules", "x", "y") == RIGHT


def test_a_score_says_what_is_correct_unless_the_verifier_does():
    assert Verdict(1.0).correct
    assert not Verdict(0.99).correct
    assert Verdict(0.2, correct=True).correct
    for score in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Verdict(score)


def test_the_reward_function_passes_the_row_on():
    label = Reference("42", "What?", {"column": "x"}).label()
    grader = "support.verifiers:says_problem"
    graded = reward_func(["p </think>What? 42 x"], ["p "], [label], grader=grader)
    assert graded["rewards"] == 1.0
    label = Reference("42", "What?", {"tolerance": 1}).label()
    graded = reward_func(["p </think>41"], ["p "], [label], grader="support.verifiers:nearness")
    assert graded["rewards"] == 0.5
    assert graded["scores"] == 0.5
    assert graded["extra_logs"]["swap/graded_correct"] == 1.0
    # The label of a row that was never prepared is its reference answer alone.
    graded = reward_func(["p </think>42"], ["p "], [42], grader="support.verifiers:nearness")
    assert graded["rewards"] == 1.0


def test_labels_come_back_as_they_were():
    label = Reference('a\u2028"b"', "p", {"options": ["x", 1]})
    assert Reference.parse(label.label()) == label
    assert Reference.parse("{1, 2}") == Reference("{1, 2}")
    assert Reference.parse(None) == Reference("")


BROKEN_LABELS = [
    '{"reference_answer": "4',
    '{"reference_answer": "4"}',
    '{"reference_answer": 4, "problem": "p", "metadata": {}}',
    '{"reference_answer": "4", "problem": "p", "metadata": []}',
    '{"reference_answer": ' + "[" * 100_000,
]


@pytest.mark.parametrize("label", BROKEN_LABELS)
def test_a_label_that_cannot_be_read_is_counted_and_earns_nothing(label):
    with pytest.raises(ValueError):
        Reference.parse(label)
    for grader in ("math", "multiple_choice"):
        graded = reward_func(["p </think>4"], ["p "], [label], grader=grader)
        assert graded["rewards"] == 0.0
        assert graded["extra_logs"]["swap/grader_error"] == 1.0
