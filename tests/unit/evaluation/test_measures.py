"""What samples amount to, against numbers worked by hand."""

import pandas as pd
import pytest

from openrlhf_swap.evaluation.measures import area, count_votes, measure_evaluation, read_forced
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import read_rows, write_rows


def test_measures_by_hand(evaluated):
    values = measure_evaluation(evaluated / "base")["own"].values
    # Right: p0 and q0. Tokens 10 + 50 right, 30 + 70 wrong; means of the problems 20 and 60.
    assert (values["accuracy"], values["tokens"], values["tokens_median"]) == (0.5, 40, 40)
    assert (values["tokens_correct"], values["tokens_wrong"]) == (30, 50)
    assert (values["tokens_thinking"], values["tokens_answer"], values["truncated"]) == (38, 2, 0.25)
    # pass@2: both problems have a right sample. maj@2: p ties between 2 and 3 (half), q has one vote (right).
    assert (values["pass@2"], values["maj@2"]) == (1.0, 0.75)
    assert values["accuracy_per_1k_tokens"] == 0.5 / 0.04
    assert values["grader_no_answer"] == 0.25


@pytest.mark.parametrize(
    ("answers", "votes"),
    [
        ([r"\dfrac{1}{2}", r"\frac{1}{2}", r"\tfrac{1}{2}", "½", r"$\frac{1}{2}$", "\\frac {1}\n{2}"], 1),
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
    for path in (rows_path("samples", evaluated / "base", "own"), rows_path("grades", evaluated / "base", "own")):
        rows = [
            {**row, "id": "p", "sample": n, "answer": answer, "correct": correct}
            for n, (row, (answer, correct)) in enumerate(zip(read_rows(path), spelled, strict=True))
        ]
        write_rows(path, rows)
    assert measure_evaluation(evaluated / "base")["own"].values["maj@4"] == 1.0  # as text, four answers would tie


def test_wrong_answers_vote_together_where_the_grader_finds_them_equal():
    answers = ["4", "4", "0.5", "\\frac{1}{2}", "\\frac{2}{4}"]
    group = pd.DataFrame({"answer": answers, "correct": [True, True, False, False, False]})
    assert count_votes(group) == ["4", "4", "0.5", "0.5", "0.5"]  # by text, 4 would win
    few = pd.DataFrame({"answer": ["4", "4", "4", "0.5", "1/2"], "correct": [True] * 3 + [False] * 2})
    assert count_votes(few) == ["4", "4", "4", "0.5", "1/2"]  # they cannot win: not compared


def test_as_many_samples_vote_as_the_measure_says(tmp_path):
    """One problem has two samples, the other five, of which the later ones agree on a wrong answer."""
    answers = {"p": "44555", "q": "44"}
    rows = [{"id": i, "sample": n, "answer": a} for i, given in answers.items() for n, a in enumerate(given)]
    counts = {"tokens": 9, "thinking_tokens": 5, "truncated": False, "text": ""}
    write_rows(rows_path("samples", tmp_path, "own"), [{**row, **counts} for row in reversed(rows)])
    grades = [{**row, "correct": row["answer"] == "4", "status": "ok"} for row in rows]
    write_rows(rows_path("grades", tmp_path, "own"), grades)
    values = measure_evaluation(tmp_path)["own"].values
    assert values["maj@2"] == 1.0
    assert values["pass@2"] == (1 - 3 / 10 + 1) / 2  # of all samples: 3 of the 10 pairs of p are wrong
    assert values["accuracy"] == (2 / 5 + 1) / 2


def test_a_budget_of_zero_has_no_part_in_the_area(tmp_path):
    rows = [{"budget": budget, "accuracy": accuracy} for budget, accuracy in ((0, 0.5), (10, 0.0), (1000, 1.0))]
    write_rows(rows_path("forced", tmp_path, "own"), rows)
    assert area(read_forced(tmp_path, "own")) == {"budget_least": 10, "budget_most": 1000, "area": 0.5}
    write_rows(rows_path("forced", tmp_path, "own"), rows[:2])
    assert area(read_forced(tmp_path, "own")) == {}
