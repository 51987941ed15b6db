"""The rows of the comparison: every objective, with settings made to fit a world.

    python -m studies.comparison.objectives --world addition --output configurations.json

An objective that is not in `objectives.json` has its defaults.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.files import write_text
from openrlhf_swap.objectives.registry import OBJECTIVES
from studies.toy_tasks import module_of

TABLE = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def configurations(world: str) -> list[dict[str, Any]]:
    """The rows of a world, as run_sweep.py reads them."""
    settings = settings_of(world)
    names = settings.pop("only", [*OBJECTIVES, *TABLE["variants"]])
    return [_row(name, settings) for name in names]


def settings_of(world: str) -> dict[str, Any]:
    """What stands for the names in braces in a world's rows."""
    return {"module": module_of(world), **TABLE["worlds"][world]}


def row_of(world: str, name: str) -> dict[str, Any]:
    """The row of an objective in a world, whether its comparison has it or not."""
    return _row(name, settings_of(world))


def flags_of(world: str, name: str) -> list[str]:
    """The flags of such a row."""
    flags: list[str] = row_of(world, name)["train"]
    return flags


def _row(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    objective, *changes = TABLE["variants"].get(name, [name])
    flags = ["--swap.objective", objective, *changes, *TABLE["flags"].get(name, [])]
    if name in TABLE["taught"]:
        flags += ["--actor.model_name_or_path", "{sweep}/taught_policy/trained"]
    row = {"name": name, "train": flags}
    if name in TABLE["evaluate"]:
        row["evaluate"] = TABLE["evaluate"][name]
    for step in row.keys() - {"name"}:
        for key, value in settings.items():
            row[step] = [word.replace(f"{{{key}}}", str(value)) for word in row[step]]
    return row


def main(argv: list[str]) -> None:
    parser = Parser("objectives", __doc__)
    parser.add_argument("--world", choices=TABLE["worlds"], required=True)
    parser.add_argument("--output", type=Path, required=True, help="the JSON file to write")
    args = parser.parse_args(argv)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_text(args.output, json.dumps(configurations(args.world), indent=1))


if __name__ == "__main__":
    sys.exit(run_command(main))
