"""Every row of a table has as many cells as the table's header: otherwise it is shown as pipes."""

import re
from pathlib import Path

import pytest
from support.paths import ROOT

FOLDERS = (ROOT / "docs", ROOT / "examples", ROOT / "evaluation")
PAGES = sorted([*ROOT.glob("*.md"), *(page for each in FOLDERS for page in each.rglob("*.md"))])


def cells(row: str) -> int:
    """The number of cells; a pipe after a backslash is text."""
    return len(re.findall(r"(?<!\\)\|", row)) - 1


def uneven_tables(text: str) -> list[str]:
    """The headers of tables that have a row with another number of cells."""
    tables = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    rows = [table.splitlines() for table in tables]
    return [header for header, *rest in rows if any(cells(row) != cells(header) for row in rest)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_rows_have_as_many_cells_as_their_header(page: Path):
    assert uneven_tables(page.read_text(encoding="utf-8")) == []


def test_an_uneven_table_is_found():
    assert uneven_tables("| a | b |\n|---|---|\n| 1 | 2 | 3 |\n") == ["| a | b |"]
    assert uneven_tables("| a | b |\n|---|---|\n| 1 \\| 2 | 3 |\n") == []
