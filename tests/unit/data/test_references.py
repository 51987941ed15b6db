"""Reference answers as data sets have them."""

from decimal import Decimal

import pytest

from openrlhf_swap.data.references import read_reference


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
