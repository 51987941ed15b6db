"""Markdown tables as cells, and Holm's correction, for tests that compute tables again."""

import re


def cells_of(text):
    """The cells of a table's header and rows."""
    header, ruler, *rows = text.strip().splitlines()
    assert set(ruler) <= set("|-: ")
    return [list(map(str.strip, line.strip("|").split("|"))) for line in (header, *rows)]


def tables_in(page, header=""):
    """The cells of each table of a page whose first line begins so."""
    text = page.read_text(encoding="utf-8")
    tables = re.findall(rf"^\| {re.escape(header)}.*?(?=\n\n)", text, re.M | re.S)
    return list(map(cells_of, tables))


def corrected_by_hand(tests):
    """Holm's correction of p-values by key."""
    corrected = {}
    largest = 0.0
    for rank, key in enumerate(sorted(tests, key=tests.get)):
        largest = max(largest, (len(tests) - rank) * tests[key])
        corrected[key] = min(1.0, largest)
    return corrected
