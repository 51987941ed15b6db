"""Write the page that compares the objectives with their authors' numbers.

    python docs/make_conformance.py > docs/method/conformance.md

The seeded groups and the authors' numbers are data (`tests/conformance`); each objective is run on the groups along
the training's own path (`tests/support/conformance.py`).
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

    from openrlhf_swap.objectives.registry import OBJECTIVES

HEAD = """# Conformance

Each objective beside the functions of its authors, on the same seeded groups of four responses: all correct, all
wrong, one and three correct, equal lengths, cut off, unclosed thoughts, answers without a box; twice over the same
problems, so that what an objective remembers counts. Responses take the training's own path, from an engine's answer
through the samples generator and the experience maker to each token's advantage; only the policy's forward pass is
left out. Both sides get the same verdicts of a grader.

How the numbers were made: *run*, the body of the authors' published function was executed, with its access to data
replaced; *transcription*, their formula was written down a second time, apart from this package. Either way they are
kept as data with their origin (`tests/conformance/numbers`), and none of the authors' code is in this repository.
Lengths count tokens. What is left of a difference is float32 and the constant added to a group's deviation (OpenRLHF
1e-9, verl 1e-6, TRL 1e-4).
"""
OWN = {
    "swap": "the paper gives a formula and no code: its worked group is in `tests/unit/algorithm`",
    **dict.fromkeys(
        ("step_only", "no_penalty", "static_penalty", "uniform_penalty"), "rows of the paper's ablation, as `swap`"
    ),
    "vsrm_scores": "not published: ours, after `vsrm`",
    "length_critic": "not published: ours",
}


def row(name: str) -> list[str]:
    """A variant's line of the table."""
    known = numbers()[name]
    origin, (cases, largest) = known["origin"], largest_difference(name)
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
    """Print the page."""
    headers = ("objective", "origin", "how", "responses", "largest difference", "differs on purpose")
    print(HEAD)
    print(tabulate([row(name) for name in numbers()], headers, "github", disable_numparse=True))
    print("\nWithout authors' numbers:\n")
    shown = {name.partition("-")[0] for name in numbers()}
    for name in OBJECTIVES:
        if name not in shown:
            print(f"* `{name}`: {OWN[name]}")


if __name__ == "__main__":
    main()
