"""Other verifiers than math-verify: the built-in ones, and functions of one's own."""

import json

import pytest
from support.confined import confined

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rewards import Grade, Grader, unit_tests
from openrlhf_swap.rewards.openrlhf_reward import reward_func
from openrlhf_swap.rewards.unit_tests import NO_TESTS, find_fault, last_code
from openrlhf_swap.rewards.verifiers import Reference, Verdict, find_verifier


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
    assert (wrong, wrong.why, wrong.stated) == (Grade(False, "ok"), "read B", "B")
    # In a thought that was never closed a letter counts only where a final answer is stated.
    assert grade(name, "Take option (C)\nor rather\nanother", "C").status == "no_answer"
    assert grade(name, "Let me see.\nThe answer is (C).", "C").correct


def test_reference_answers_of_a_choice_are_letters_of_options():
    fault = find_verifier("multiple_choice").find_fault
    assert fault("C", {}) is None and fault(" c ", {"options": ["1", "2", "3"]}) is None
    assert fault("D", {"options": ["1", "2", "3"]}) == "an answer that is no option's letter"
    assert fault("42", {}) == fault("", {}) == "an answer that is not a letter"


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
        ("math_verify", "use one of math, multiple_choice, unit_tests, regex:PATTERN, or a"),
        ("regex:", "put the pattern after it"),
        ("regex:(", "which is not a regular expression"),
        ("no_such_module:f", "which cannot be imported (No module named 'no_such_module')"),
        ("support.verifiers:absent", "which cannot be imported"),
        (
            "support.verifiers:__name__",
            "which is not a function of (problem, answer, response, meta",
        ),
        ("math:sqrt", "which is not a function of (problem, answer, response, metadata); see docs"),
    ],
)
def test_a_grader_that_does_not_exist(name, message):
    with pytest.raises(ConfigError) as raised:
        find_verifier(name)
    assert message in str(raised.value) and str(raised.value).startswith("--swap.grader is ")


def test_a_function_of_ones_own_gives_part_scores(grade):
    half = grade("support.verifiers:nearness", "it is 41", "42")
    assert (half.score, half.correct, half.status, half.why) == (0.5, False, "ok", "1 off")
    near = grade("support.verifiers:nearness", "it is 41", "42", tolerance=2)
    assert (near.score, near.correct) == (0.5, True)
    assert grade("support.verifiers:nearness", "</think>42", "42") == RIGHT
    assert grade("support.verifiers:nearness", "no idea", "42") == Grade(False, "no_answer")
    assert grade("support.verifiers:says_problem", "p 42 x", "42", column="x").correct


def test_a_function_that_fails_is_an_error_with_its_reason(grade):
    failed = grade("support.verifiers:crashes", "x", "y")
    assert failed == Grade(False, "error") and failed.why == "KeyError: 'no such thing'"
    failed = grade("support.verifiers:out_of_range", "x", "y")
    assert failed == Grade(False, "error")
    assert "the score is 3.0; a verifier returns one between 0 and 1" in failed.why
    assert grade("support.verifiers:reads_rules", "x", "y") == RIGHT


def test_a_score_says_what_is_correct_unless_the_verifier_does():
    assert [Verdict(score).correct for score in (0.0, 0.99, 1.0)] == [False, False, True]
    assert Verdict(0.2, correct=True).correct
    for score in (-0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Verdict(score)


def test_the_reward_function_passes_the_row_on():
    label = Reference("42", "What?", {"column": "x"}).label()
    grader = "support.verifiers:says_problem"
    graded = reward_func(["p </think>What? 42 x"], ["p "], [label], grader=grader)
    assert (graded["rewards"], graded["extra_logs"]["swap/graded_correct"]) == (1.0, 1.0)
    label = Reference("42", "What?", {"tolerance": 1}).label()
    graded = reward_func(["p </think>41"], ["p "], [label], grader="support.verifiers:nearness")
    assert (graded["rewards"], graded["scores"]) == (0.5, 0.5)
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
        assert (graded["rewards"], graded["extra_logs"]["swap/grader_error"]) == (0.0, 1.0)


RIGHT = Grade(True, "ok", score=1.0)
ONE_TEST = "assert add(1, 2) == 3"
ADD = "So:\n```python\ndef add(a, b):\n    return a + b\n```\nDone."
DOUBLE = "```python\nprint(2 * int(input()))\n```"
METHOD = """```python
class Solution:
    def twice(self, xs: List[int]) -> list:
        return [2 * x for x in xs]
```"""


def rows_of(outputs):
    """Tests of a program or a function by its input."""
    return json.dumps([{"input": given, "output": output} for given, output in outputs.items()])


@confined
@pytest.mark.parametrize(
    ("response", "tests", "function", "score"),
    [
        (ADD, "assert add(1, 2) == 3\nassert add(0, 0) == 0", None, 1.0),
        (ADD, "x = 1\nassert add(x, 2) == 3\nassert add(0, 0) == 1", None, 0.5),
        ("```\ndef add(a, b): return a - b\n```" + ADD, ONE_TEST, None, 1.0),  # the last counts
        ("def add(a, b):\n    return a + b", ONE_TEST, None, 1.0),
        ("```python\ndef add(a b)\n```", ONE_TEST, None, 0.0),
        # What ends the process before the tests passes none of them.
        ("```python\nimport sys\nsys.exit(0)\n```", "assert True", None, 0.0),
        ("```python\nimport os\nos._exit(0)\n```", "assert True", None, 0.0),
        (DOUBLE, rows_of({"3\n": "6", "4": "8.0\n"}), None, 1.0),
        (DOUBLE, rows_of({"3": "6", "x": "6"}), None, 0.5),
        (DOUBLE, rows_of({"5": "10"}), "", 1.0),  # as in a table of which other rows have functions
        (METHOD, rows_of({"[1, 2]": "[2, 4]", "[]": "[1]"}), "twice", 0.5),
    ],
)
def test_code_against_tests(grade, response, tests, function, score):
    found = grade("unit_tests", response, tests, fn_name=function)
    assert (found.score, found.correct, found.status) == (score, score == 1, "ok"), found.why


@confined
def test_layouts_of_apps_taco_and_humaneval(grade):
    programs = '{"inputs": ["3\\n", ["4"]], "outputs": ["6\\n", ["8"]]}'
    assert grade("unit_tests", DOUBLE, programs).score == 1
    calls = '{"fn_name": "twice", "inputs": [[[1, 2]], [[]]], "outputs": [[2, 4], [1]]}'
    assert grade("unit_tests", METHOD, calls).score == 0.5
    check = "def check(candidate):\n    assert candidate(1, 2) == 3"
    assert grade("unit_tests", ADD, check, entry_point="add").score == 1
    big = '[{"input": "", "output": "1' + "0" * 5000 + '"}]'
    assert grade("unit_tests", "```python\nprint(10**5000)\n```", big).score == 1


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("1. One:\n\n   ```python\n   for x in y:\n       x\n   ```\n2. x", "for x in y:\n    x\n"),
        ("\t```\n\tx\n\t```", "x\n"),
        ("   ```python\nx\n   ```", "x\n"),
        ("``` python\nx\n```", "x\n"),
        ("```  \nx\n```", "x\n"),
        ('```python title="a.py"\r\nx\r\n```', "x\n"),
        ("````{python}\nx = '```'\n````", "x = '```'\n"),
        ("```py3\nx\n```\n```text\n2\n```\n```c++\ny\n```", "x\n"),
        ('```\nx = """\n  \n"""\n```', 'x = """\n  \n"""\n'),  # as it stands
    ],
)
def test_fences_may_be_indented_and_spaced(response, code):
    assert last_code(response) == code


# In the order of LiveCodeBench's imports, `pow` is the built-in, with three arguments, and `bisect`
# the module.
LIVE = """```python
from __future__ import annotations
from dataclasses import dataclass

@dataclass
class Row:
    items: Undefined

    def total(self, n: int) -> Undefined:
        seen = Counter(self.items) + Counter(defaultdict(int))
        seen = reduce(add, deque(seen.elements())) + gcd(4, 6) + comb(n, n) + pow(2, 3, 5)
        seen += bisect.bisect([1], 1)
        return int(seen + mean([1, 3]) + len(ascii_lowercase) + datetime.datetime(9, 1, 1).year)

def deep(n):
    return n and 1 + deep(n - 1)

def deep_in_c(n):
    return n and sum(map(deep_in_c, [n - 1]))

def solve(n):
    try:
        deep_in_c(40_000)  # 25 MB of stack, unless this Python refuses
    except RecursionError:
        pass
    return [deep(n), sys.getrecursionlimit(), Row([5, 7]).total(n)]

if __name__ == "__main__":
    print(*solve(int(stdin.readline())))
```"""


@confined
@pytest.mark.parametrize(
    ("tests", "function"),
    [
        ('[{"input": "5000", "output": "[5000, 50000, 56]"}]', {"fn_name": "solve"}),
        ('[{"input": "5000", "output": "5000 50000 56"}]', {}),
    ],
)
def test_code_finds_the_names_and_the_depth_of_live_code_bench(tests, function):
    """12 + 2 + 1 + 3 + 1 + 2 + 26 + 9 = 56; a future import, which must come first, works."""
    assert unit_tests.verify("p", tests, LIVE, function).score == 1


def test_tests_that_are_none():
    assert find_fault("assert f(1) == 2", {}) is None
    nested = '[{"input": [], "output": ' + "[" * 100_000
    for tests in ("", "f(1)", "[]", "[1]", '{"input": 1}', "assert (", nested):
        assert find_fault(tests, {}) == NO_TESTS
    assert find_fault('[{"input": 1, "output": "2"}]', {"fn_name": "f"}) == NO_TESTS
