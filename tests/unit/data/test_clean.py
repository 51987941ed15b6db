"""Which rows are dropped, and for which reason."""

from support.problems import DIE

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.clean import (
    DUPLICATE,
    EMPTY_PROBLEM,
    NEAR_BENCHMARK,
    SAME_AS_BENCHMARK,
    find_reasons,
)
from openrlhf_swap.data.near_duplicates import BenchmarkIndex
from openrlhf_swap.rewards.golds import EMPTY_ANSWER, UNPARSABLE_ANSWER
from openrlhf_swap.rewards.verifiers import Reference


def test_every_reason():
    index = BenchmarkIndex(
        {"math500": [Problem("m/1", "What is $3 + 4$?", "7")], "aime24": [Problem("a-1", DIE, "1")]}
    )
    table = [
        ("  \n", "1", {"reason": EMPTY_PROBLEM}),
        ("what is 3+4", "7", {"reason": SAME_AS_BENCHMARK, "benchmark": "math500", "benchmark_id": "m/1"}),
        (DIE + " Thanks", "", {"reason": NEAR_BENCHMARK, "benchmark": "aime24", "benchmark_id": "a-1"}),
        ("What is $3+5$?", " $ $ ", {"reason": EMPTY_ANSWER}),
        ("What is $3+5$?", r"\boxed{}", {"reason": UNPARSABLE_ANSWER}),
        ("What is $3+5$?", "8", None),  # the first with a usable answer
        ("What is $3 + 5$", "9", {"reason": DUPLICATE, "duplicate_of": 5}),
        ("What is $3+6$?", r"\frac{18}{2}", None),
    ]
    problems = [problem for problem, *_ in table]
    references = [Reference(answer) for _, answer, _ in table]
    assert find_reasons(problems, references, index) == [expected for *_, expected in table]
    # Without benchmarks their problems are rows like others.
    assert find_reasons(problems, references, None)[1] is None
