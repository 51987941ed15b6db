"""What samples amount to, against numbers worked by hand."""

import numpy as np
import pandas as pd
import pytest

from openrlhf_swap.evaluation import measures
from openrlhf_swap.evaluation.measures import area, count_votes, measure_evaluation, read_forced
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import read_rows, write_rows


def test_measures_by_hand(evaluated):
    values = measure_evaluation(evaluated / "base")["own"].values
    # Right: p0 and q0. Tokens 10 + 50 right, 30 + 70 wrong; means of the problems 20 and 60.
    assert (values["accuracy"], values["tokens"], values["tokens_median"]) == (0.5, 40, 40)
    assert (values["tokens_correct"], values["tokens_wrong"]) == (30, 50)
    assert (values["tokens_thinking"], values["tokens_answer"], values["truncated"]) == (
        38,
        2,
        0.25,
    )
    # pass@2: both problems have a right sample. maj@2: p ties between 2 and 3 (half), q has one
    # vote (right).
    assert (values["pass@2"], values["maj@2"]) == (1.0, 0.75)
    assert values["accuracy_per_1k_tokens"] == 0.5 / 0.04
    assert values["grader_no_answer"] == 0.25


@pytest.mark.parametrize(
    ("answers", "votes"),
    [
        (
            [
                r"\dfrac{1}{2}",
                r"\frac{1}{2}",
                r"\tfrac{1}{2}",
                "½",
                r"$\frac{1}{2}$",
                "\\frac {1}\n{2}",
            ],
            1,
        ),
        (["(1, 2)", "(1,2)", "( 1,  2 )"], 1),
        (["1,000", r"1{,}000", r"1\,000", "1000"], 1),
        (["33", "033", "x=33", "$x = 33$", "33.0"], 1),
        (["(1,000)", "(1000)", "33, 1", "331"], 4),
        (["0.5", "1/2"], 1),
        (["1 1/2", "11/2"], 2),
    ],
)
def test_one_answer_in_several_spellings_is_one_vote(answers, votes):
    group = pd.DataFrame({"answer": ["77", *answers], "correct": [True] + [False] * len(answers)})
    assert len(set(count_votes(group)[1:])) == votes


def test_the_majority_counts_spellings_together(evaluated):
    spelled = [(r"\dfrac{1}{2}", True), (r"\frac{1}{2}", True), ("½", True), ("3", False)]
    for path in (
        rows_path("samples", evaluated / "base", "own"),
        rows_path("grades", evaluated / "base", "own"),
    ):
        rows = [
            {**row, "id": "p", "sample": n, "answer": answer, "correct": correct}
            for n, (row, (answer, correct)) in enumerate(zip(read_rows(path), spelled, strict=True))
        ]
        write_rows(path, rows)
    assert (
        measure_evaluation(evaluated / "base")["own"].values["maj@4"] == 1.0
    )  # as text, four answers would tie


def test_wrong_answers_vote_together_where_the_grader_finds_them_equal():
    answers = ["4", "4", "0.5", "\\frac{1}{2}", "\\frac{2}{4}"]
    group = pd.DataFrame({"answer": answers, "correct": [True, True, False, False, False]})
    assert count_votes(group) == ["4", "4", "0.5", "0.5", "0.5"]  # by text, 4 would win
    few = pd.DataFrame(
        {"answer": ["4", "4", "4", "0.5", "1/2"], "correct": [True] * 3 + [False] * 2}
    )
    assert count_votes(few) == ["4", "4", "4", "0.5", "1/2"]  # they cannot win: not compared


def test_as_many_samples_vote_as_the_measure_says(tmp_path):
    """One problem has two samples, the other five, of which the later ones agree on a wrong answer."""
    answers = {"p": "44555", "q": "44"}
    rows = [
        {"id": i, "sample": n, "answer": a}
        for i, given in answers.items()
        for n, a in enumerate(given)
    ]
    counts = {"tokens": 9, "thinking_tokens": 5, "truncated": False, "text": ""}
    write_rows(rows_path("samples", tmp_path, "own"), [{**row, **counts} for row in reversed(rows)])
    grades = [{**row, "correct": row["answer"] == "4", "status": "ok"} for row in rows]
    write_rows(rows_path("grades", tmp_path, "own"), grades)
    values = measure_evaluation(tmp_path)["own"].values
    assert values["maj@2"] == 1.0
    assert (
        values["pass@2"] == (1 - 3 / 10 + 1) / 2
    )  # of all samples: 3 of the 10 pairs of p are wrong
    assert values["accuracy"] == (2 / 5 + 1) / 2


def test_a_budget_of_zero_has_no_part_in_the_area(tmp_path):
    rows = [
        {"budget": budget, "accuracy": accuracy}
        for budget, accuracy in ((0, 0.5), (10, 0.0), (1000, 1.0))
    ]
    write_rows(rows_path("forced", tmp_path, "own"), rows)
    assert area(read_forced(tmp_path, "own")) == {
        "budget_least": 10,
        "budget_most": 1000,
        "area": 0.5,
    }
    write_rows(rows_path("forced", tmp_path, "own"), rows[:2])
    assert area(read_forced(tmp_path, "own")) == {}


def test_pass_at_k():
    # 4 samples, 1 right: two of them are both wrong in C(3,2)/C(4,2) = 3/6 of the choices.
    assert measures.pass_at_k(1, 4, 2) == 0.5
    assert measures.pass_at_k(1, 4, 1) == 0.25
    assert measures.pass_at_k(0, 4, 4) == 0.0
    assert measures.pass_at_k(3, 4, 2) == 1.0
    with pytest.raises(ValueError, match="use 1 to 4"):
        measures.pass_at_k(1, 4, 5)


def test_the_answer_of_a_majority():
    assert measures.majority_is_correct(["1", "2", "2"], [False, True, True]) == 1.0
    assert measures.majority_is_correct(["1", "1", "2"], [False, False, True]) == 0.0
    # "1" and "2" tie: half. No answer gets no vote.
    assert measures.majority_is_correct(["1", "2", None, None], [False, True, False, False]) == 0.5
    assert measures.majority_is_correct([None], [False]) == 0.0


def test_bootstrap_intervals():
    # 100 problems, half of them right: the mean's standard error is .5/10 = .05, so the interval is
    # .5 -+ 1.96 x .05.
    values = np.repeat([0.0, 1.0], 50)
    low, high = measures.bootstrap_interval(values)
    assert low == pytest.approx(0.402, abs=0.015)
    assert high == pytest.approx(0.598, abs=0.015)
    assert measures.bootstrap_interval(np.ones(5)) == (1.0, 1.0)
    # Pairing removes what both share: a constant gain has no spread.
    mean, low, high = measures.paired_difference(values, values + 0.25)
    assert (mean, low, high) == pytest.approx((0.25, 0.25, 0.25))


def test_the_area_under_a_curve_of_budgets():
    # A decade from 0 to 1 (mean .5), and a decade at 1.
    assert measures.area_under([10, 100, 1000], [0, 1, 1]) == pytest.approx(0.75)
    assert measures.area_under([1000, 10, 100], [1, 0, 1]) == pytest.approx(0.75)
    assert measures.area_under([7, 500], [0.4, 0.4]) == pytest.approx(0.4)
