"""Print how far each objective is from its authors' numbers, and what differs on purpose.

    python docs/make_conformance.py

The seeded groups and the authors' numbers are data (`tests/conformance`); each objective is run on
the groups along the training's own path (`tests/support/conformance.py`).
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tabulate import tabulate

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

with contextlib.redirect_stdout(sys.stderr):  # vLLM logs while it is imported
    from support.conformance import largest_difference, numbers

    from openrlhf_swap.objectives.registry import OBJECTIVES, objective_class

HEAD = """Each objective beside the functions of its authors, on the same seeded groups of four responses: all correct, all
wrong, one and three correct, equal lengths, cut off, unclosed thoughts, answers without a box. Each problem comes
twice, so that what an objective remembers counts. Responses take the training's own path, from an engine's answer to
each token's advantage; only the policy's forward pass is left out. Both sides get the same verdicts of a grader and the
same entropies of steps.

run: the body of the authors' published function was executed, with its access to data replaced.
transcription: their formula was written down a second time, apart from this package.
Lengths count tokens. The remaining differences come from float32 and from the constant added to a group's deviation
(OpenRLHF 1e-9, verl 1e-6, TRL 1e-4).
"""


def row(name: str) -> list[str]:
    """A variant's line of the table."""
    known = numbers()[name]
    origin = known["origin"]
    cases, largest = largest_difference(name)
    objective, _, variant = name.partition("-")
    place = ", ".join(part for part in (origin["repository"], origin["commit"]) if part)
    if origin["file"]:
        place += ": " + ", ".join(Path(file).name for file in origin["file"].split(", "))
    shown = f"`{objective}`" + (f", {variant.replace('_', ' ')}" if variant else "")
    return [
        shown,
        place,
        origin["how"],
        str(cases),
        f"{largest:.0e}",
        known["differs"],
    ]


def main() -> None:
    """Print the table, and the objectives without authors' numbers."""
    headers = (
        "objective",
        "origin",
        "how",
        "responses",
        "largest difference",
        "differs on purpose",
    )
    print(HEAD)
    print(tabulate([row(name) for name in numbers()], headers, "github", disable_numparse=True))
    print("\nWithout authors' numbers:\n")
    shown = {name.partition("-")[0] for name in numbers()}
    by_reason: dict[str, list[str]] = {}
    for name in OBJECTIVES:
        if name not in shown:
            by_reason.setdefault(objective_class(name).no_numbers, []).append(f"`{name}`")
    for reason, names in by_reason.items():
        print(f"* {', '.join(names)}: {reason}")


if __name__ == "__main__":
    main()
