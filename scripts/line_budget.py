"""Print how many lines each room of the package has beside its budget in pyproject.toml; exit with 1 above one.

    python scripts/line_budget.py

A room that needs more lines gets them in the same change, where a reviewer sees it.
"""

import sys
from pathlib import Path

import tomllib
from tabulate import tabulate

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    """Run the command."""
    budgets = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["line-budget"]
    files = {room: sorted((ROOT / room).glob("*.py" if room == "openrlhf_swap" else "**/*.py")) for room in budgets}
    lines = {room: sum(len(path.read_bytes().splitlines()) for path in paths) for room, paths in files.items()}
    rows = [(room, len(files[room]), lines[room], budget) for room, budget in budgets.items()]
    rows.append(("together", *(sum(column) for column in zip(*(row[1:] for row in rows), strict=True))))
    print(tabulate(rows, ("room", "files", "lines", "budget")))
    above = [room for room, budget in budgets.items() if lines[room] > budget]
    for room in above:
        print(f"error: {room} has {lines[room]} lines, above its budget of {budgets[room]} in pyproject.toml")
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
