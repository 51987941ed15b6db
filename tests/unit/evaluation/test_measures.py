"""What samples amount to, against numbers worked by hand."""

import numpy as np
import pandas as pd
import pytest

from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation import measures
from openrlhf_swap.evaluation.figures import pareto
from openrlhf_swap.evaluation.measures import (
    FROM_VERDICTS,
    count_votes,
    measure_evaluation,
    measure_evaluations,
)
from openrlhf_swap.evaluation.report import difference_cells, evaluation_cells, many_loops
from openrlhf_swap.evaluation.samples import SampleFiles
from openrlhf_swap.evaluation.selection import sampled_problems
from openrlhf_swap.evaluation.traces import traces
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards.verifiers import NOT_JUDGED


def test_measures_by_hand(evaluated):
    values = measure_evaluation(evaluated / "base")["own"].values
    # Right: p0 and q0. Tokens 10 + 50 right, 30 + 70 wrong; means of the problems 20 and 60.
    # With both samples each problem has a right one; p's vote ties (half), q has one vote (right).
    expected = {
        "samples": 2,
        "accuracy": 0.5,
        "tokens": 40,
        "tokens_median": 40,
        "tokens_correct": 30,
        "tokens_wrong": 50,
        "tokens_thinking": 38,
        "tokens_answer": 2,
        "truncated": 0.25,
        "pass@k": 1.0,
        "maj@k": 0.75,
        "accuracy_per_1k_tokens": 0.5 / 0.04,
        "grader_no_answer": 0.25,
        "length_correctness": -1.0,  # the longer one of each problem is wrong
    }
    assert {name: values[name] for name in expected} == pytest.approx(expected)
    assert "looping" not in values  # these samples do not say


def test_without_a_grader_there_are_lengths_and_no_accuracy(evaluated):
    """The grades are those of an `eval run --swap.grader none`, once of two evaluations."""
    problems = [{"id": name, "problem": name, "answer": "2"} for name in "pq"]
    for folder in ("base", "short"):
        write_rows(SampleFiles(evaluated / folder, "own").path("problems"), problems)
    files = SampleFiles(evaluated / "short", "own")
    unjudged = {"correct": False, "status": "ok", "answer": None, "why": NOT_JUDGED}
    write_rows(files.path("grades"), [{**row, **unjudged} for row in files.rows("grades")])
    runs = measure_evaluations([evaluated / "base", evaluated / "short"])
    values = runs["short"]["own"].values
    assert values["tokens"] == 10
    assert all(np.isnan(values[name]) for name in FROM_VERDICTS & values.keys())
    rows = {row[0]: row for row in evaluation_cells(runs).rows}
    assert rows["short"][3:8] == ["", "", "10", "10", ""]
    assert difference_cells(runs)[0].rows[0][3:] == ["", "-30 (-45 to -15)"]
    with pytest.raises(DataError, match="short was not judged; evaluate with another"):
        pareto([evaluated / "base", evaluated / "short"])
    with pytest.raises(DataError, match="short was not judged; evaluate with another"):
        list(sampled_problems(evaluated / "short"))
    assert {row["correct"] for row in traces(evaluated / "base")} == {True, False}
    assert {row["correct"] for row in traces(evaluated / "short")} == {None}


def test_looping_responses_are_counted_where_every_sample_says_so(evaluated):
    files = SampleFiles(evaluated / "base", "own")
    rows = list(files.rows("samples"))
    write_rows(files.path("samples"), [{**row, "looping": row["tokens"] == 70} for row in rows])
    runs = {"base": measure_evaluation(evaluated / "base")}
    assert runs["base"]["own"].values["looping"] == 0.25
    assert many_loops(runs)[0].startswith("25% of the responses of base on own loop")


def votes_of(answers, right):
    """The votes for these answers, of which the first `right` are correct."""
    correct = [number < right for number in range(len(answers))]
    return count_votes(pd.DataFrame({"answer": answers, "correct": correct}))


@pytest.mark.parametrize(
    ("answers", "votes"),
    [
        ([r"\dfrac{1}{2}", r"\frac{1}{2}", r"\tfrac{1}{2}", "½", "\\frac {1}\n{2}"], 1),
        (["33", "033", "x=33", "$x = 33$", "33.0"], 1),
        (["(1,000)", "(1000)", "33, 1", "331"], 4),
    ],
)
def test_one_answer_in_several_spellings_is_one_vote(answers, votes):
    found = votes_of(["77", *answers], right=1)
    assert len(set(found[1:])) == votes


def test_wrong_answers_vote_together_where_the_grader_finds_them_equal():
    answers = ["4", "4", "0.5", "\\frac{1}{2}", "\\frac{2}{4}"]
    assert votes_of(answers, right=2) == ["4", "4", "0.5", "0.5", "0.5"]  # by text, 4 would win
    few = ["4", "4", "4", "0.5", "1/2"]  # the wrong ones cannot win: not compared
    assert votes_of(few, right=3) == few
    assert votes_of(["½", r"\frac{1}{2}", None], right=2) == ["½", "½", None]


def test_as_many_samples_vote_as_the_measure_says(tmp_path):
    """One problem has two samples, the other five; the later ones agree on a wrong answer."""
    counts = {"tokens": 9, "thinking_tokens": 5, "truncated": False, "text": ""}
    samples = []
    grades = []
    for problem, answers in {"p": "44555", "q": "44"}.items():
        for number, answer in enumerate(answers):
            key = {"id": problem, "sample": number}
            samples.append({**key, **counts})
            grades.append({**key, "answer": answer, "correct": answer == "4", "status": "ok"})
    files = SampleFiles(tmp_path, "own")
    write_rows(files.path("samples"), reversed(samples))
    write_rows(files.path("grades"), grades)
    values = measure_evaluation(tmp_path)["own"].values
    assert values["samples"] == 2
    assert values["maj@k"] == 1.0
    assert values["pass@k"] == (1 - 3 / 10 + 1) / 2  # 3 of the 10 pairs of p are wrong
    assert values["accuracy"] == (2 / 5 + 1) / 2


@pytest.mark.parametrize(
    ("correct", "samples", "k", "expected"),
    [
        (1, 4, 2, 0.5),  # C(3,2)/C(4,2) = 3/6
        (1, 4, 1, 0.25),
        (0, 4, 4, 0.0),
        (3, 4, 2, 1.0),
    ],
)
def test_pass_at_k(correct, samples, k, expected):
    assert measures.pass_at_k(correct, samples, k) == expected


@pytest.mark.parametrize(
    ("answers", "correct", "expected"),
    [
        ("122", [False, True, True], 1.0),
        ("112", [False, False, True], 0.0),
        (["1", "2", None, None], [False, True, False, False], 0.5),  # a tie; None has no vote
    ],
)
def test_the_answer_of_a_majority(answers, correct, expected):
    assert measures.majority_is_correct(answers, correct) == expected


def test_bootstrap_intervals():
    # The mean's standard error is .5/10 = .05, so the interval is .5 -+ 1.96 x .05.
    values = np.repeat([0.0, 1.0], 50)
    assert measures.bootstrap_interval(values) == pytest.approx((0.402, 0.598), abs=0.015)
    assert measures.bootstrap_interval(np.ones(5)) == (1.0, 1.0)
    # Pairing removes what both share: a constant gain has no spread.
    assert measures.paired_difference(values, values + 0.25) == pytest.approx((0.25, 0.25, 0.25))
