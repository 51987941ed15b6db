r"""One HTML page that shows where the length of responses went; opens offline.

    python -m evaluation.inspect --traces base.scored.jsonl swap.scored.jsonl --output page.html

Traces come from `python -m openrlhf_swap.score` (see `python -m evaluation.traces`). Each file is a column: responses
to the same problem stand side by side, step by step, shaded by information gain, with the penalty that SWAP would give
each step and the answer's log-probability as a curve.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation.samples import read_rows
from openrlhf_swap.algorithm.penalty import penalty_masses, penalty_weights
from openrlhf_swap.errors import ConfigError, DataError, SwapError

TEMPLATE = Path(__file__).parent / "inspect.html"
PLACE = "__DATA__"


def add_penalties(rows: Sequence[dict[str, Any]], length_coef: float, temperature: float) -> None:
    """Give each row `penalties`, P w_k of each step, its file's responses to the same problem being its group."""
    groups = defaultdict(list)
    for row in rows:
        groups[row.get("benchmark", ""), row["problem"]].append(row)
    for group in groups.values():
        lengths = torch.tensor([[row["length"] for row in group]])
        correct = torch.tensor([[bool(row.get("correct", False)) for row in group]])
        masses = penalty_masses(lengths, correct, length_coef)[0]
        for row, mass in zip(group, masses, strict=True):
            changes = torch.tensor(row["local_gains"], dtype=torch.float64)
            weights = penalty_weights(changes, torch.ones_like(changes, dtype=torch.bool), temperature)
            row["penalties"] = (mass * weights).tolist()


def page_data(files: Sequence[Path], length_coef: float, temperature: float, limit: int) -> dict[str, Any]:
    """What the page holds: names of the columns, and problems with the responses of each.

    Raises:
        DataError: for a file without scored traces.
    """
    problems: dict[tuple[str, str], dict[str, Any]] = {}
    for column, file in enumerate(files):
        rows = [row for row in read_rows(file) if row.get("steps")]
        if not rows:
            raise DataError(f"{file} holds no scored traces; make them with python -m openrlhf_swap.score")
        for row in rows:
            row["length"] = row.get("tokens", row["step_ends"][-1] + 1)
        add_penalties(rows, length_coef, temperature)
        for row in rows:
            key = (row.get("benchmark", row.get("dataset", "")), row["problem"])
            if key not in problems:
                columns: list[list[dict[str, Any]]] = [[] for _ in files]
                problems[key] = {
                    "benchmark": key[0],
                    "problem": key[1],
                    "answer": str(row["answer"]),
                    "columns": columns,
                }
            problems[key]["columns"][column].append(_response(row))
    shown = sorted(problems.values(), key=lambda problem: -sum(map(bool, problem["columns"])))[:limit]
    return {"names": [file.name.partition(".")[0] for file in files], "problems": shown}


def _response(row: dict[str, Any]) -> dict[str, Any]:
    thought = sum(len(text) for text in row["steps"])
    return {
        "correct": row.get("correct"),
        "tokens": row["length"],
        "curve": [round(value, 4) for value in row["answer_logprobs"]],
        "steps": [
            {"text": text, "tokens": end - start, "gain": round(gain, 4), "penalty": round(penalty, 4)}
            for text, start, end, gain, penalty in zip(
                row["steps"],
                [-1, *row["step_ends"][:-1]],
                row["step_ends"],
                row["gains"],
                row["penalties"],
                strict=True,
            )
        ],
        "rest": row["response"][thought:],
    }


def render(data: dict[str, Any]) -> str:
    """The page: template and data in one file."""
    # Inside a script element only "</" could end it early.
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.inspect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--traces", type=Path, nargs="+", required=True, help="scored traces; one column each")
    parser.add_argument("--output", type=Path, required=True, help="HTML file to write")
    parser.add_argument("--length-coef", type=float, default=1.0, help="lambda of the penalty that is shown")
    parser.add_argument("--temperature", type=float, default=1.0, help="tau of the penalty that is shown")
    parser.add_argument("--limit", type=int, default=200, help="most problems on the page (default: 200)")
    args = parser.parse_args(argv)
    try:
        if args.temperature <= 0 or args.length_coef < 0:
            raise ConfigError(
                f"--temperature is {args.temperature}, --length-coef {args.length_coef}; use tau > 0 and lambda >= 0"
            )
        data = page_data(args.traces, args.length_coef, args.temperature, args.limit)
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    args.output.parent.mkdir(parents=True, exist_ok=True)
    args.output.write_text(render(data), encoding="utf-8")
    print(f"{args.output}: {len(data['problems'])} problems")
    return 0


if __name__ == "__main__":
    sys.exit(main())
