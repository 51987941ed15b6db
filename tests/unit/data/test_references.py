"""Reference answers as data sets have them."""

from decimal import Decimal

import pytest

from openrlhf_swap.data import references
from openrlhf_swap.data.references import example_answers, find_gradable, read_reference
from openrlhf_swap.rewards import Grader


@pytest.mark.parametrize(
    ("written", "read"),
    [
        # Columns of decimals, as Spark and DuckDB write them.
        *((Decimal("10.00"), "10"), (Decimal("18.50"), "18.50"), (Decimal("-1.250"), "-1.250")),
        # Characters that nobody sees.
        *(("\u200b42\ufeff", "42"), ("4\u00ad2", "42"), ("\u200e\\frac12\u2060", "\\frac12")),
    ],
)
def test_answers_are_read_as_people_see_them(written, read):
    row = {"problem": "p", "answer": written}
    assert read_reference(row, "problem", "answer", "math").answer == read


def test_good_answers_are_remembered_and_the_others_tried_again(monkeypatch, tmp_path):
    monkeypatch.setattr(references, "remembered_file", lambda: tmp_path / "good" / "answers.jsonl")
    good = {"x^2", r"\frac{3}{4}"}
    assert find_gradable([*good, *good, "$ $", ""], "test") == good
    asked = []

    def refuse_all(_, answers):
        asked.extend(answers)
        return [False] * len(answers)

    monkeypatch.setattr(Grader, "is_gradable", refuse_all)
    assert find_gradable(["x^2", "$ $", "7_7", "12"], "test") == {"x^2", "12"}
    assert asked == ["$ $", "7_7"]  # a number needs no trial


@pytest.mark.parametrize("kind", ["code.py", "tables.yaml"])
def test_answers_are_tried_again_by_another_grader(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(references.answers, "__file__", str(tmp_path / "answers.py"))
    (tmp_path / kind).write_text("a: 1")
    before = references.remembered_file()
    (tmp_path / kind).write_text("a: 2")
    assert references.remembered_file() != before


def test_examples_show_changed_answers_and_one_that_is_not():
    """A data set may have answers of several forms; the changed ones do not hide the others."""
    changed = [(rf"\boxed{{{number}}}", str(number)) for number in range(9)]
    lines = example_answers([*changed, (r"$\frac{3}{4}$", r"\frac{3}{4}"), ("x\ny", "y")])
    assert lines[0] == r"'0' (from '\boxed{0}')"
    assert len(lines) == 5
    assert lines[-1] == r"'\frac{3}{4}'"
    assert example_answers(changed) == [rf"'{n}' (from '\boxed{{{n}}}')" for n in range(5)]
