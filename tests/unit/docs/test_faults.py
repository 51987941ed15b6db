"""The page of faults names tests that exist."""

import ast
import re

from support.paths import ROOT

PAGE = ROOT / "docs" / "use" / "faults.md"
NAMED = re.compile(r"`(\w+/[\w/]*test_\w+\.py)::(test_\w+)`")


def functions_of(path):
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_case_has_a_test_that_exists():
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## What once failed")
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]
    assert len(rows) > 30
    for row in rows:
        assert len(row.replace(r"\|", "").split("|")) == 7, row
        ((file, name),) = NAMED.findall(row)
        assert name in functions_of(ROOT / "tests" / file), f"{file}::{name}"
