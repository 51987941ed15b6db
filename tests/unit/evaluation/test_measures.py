"""What samples amount to, against numbers worked by hand."""

from evaluation.measures import measure_evaluation
from evaluation.samples import grades_path
from openrlhf_swap.files import read_rows


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
    rows = {(row["id"], row["sample"]): row for row in read_rows(grades_path(evaluated / "base", "own"))}
    assert rows["q", 0]["answer"] == rows["q", 0]["answer_anywhere"] == "4"
