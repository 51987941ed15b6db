"""The page that shows where the length of responses went: its data, and the HTML that holds them."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from evaluation.traces import read_scored
from openrlhf_swap.algorithm.penalty import penalty_masses, penalty_weights
from openrlhf_swap.files import Row

TEMPLATE = Path(__file__).parent / "page.html"
PLACE = "__DATA__"


def add_penalties(rows: Sequence[Row], length_coef: float, temperature: float) -> None:
    """Give each row `penalties`, P w_k of each step, its file's responses to the same problem being its group."""
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
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
    """Names of the columns, and problems with the responses of each; DataError for a file without scored traces."""
    problems: dict[tuple[Any, Any], dict[str, Any]] = {}
    for column, file in enumerate(files):
        rows = read_scored(file)
        for row in rows:
            row["length"] = row.get("tokens", row["step_ends"][-1] + 1)
        add_penalties(rows, length_coef, temperature)
        for row in rows:
            benchmark, problem = row.get("benchmark", row.get("dataset", "")), row["problem"]
            empty = {"benchmark": benchmark, "problem": problem, "answer": str(row["answer"])}
            shown = problems.setdefault((benchmark, problem), {**empty, "columns": [[] for _ in files]})
            shown["columns"][column].append(_response(row))
    fullest = sorted(problems.values(), key=lambda problem: -sum(map(bool, problem["columns"])))
    return {"names": [file.name.partition(".")[0] for file in files], "problems": fullest[:limit]}


def _response(row: Row) -> dict[str, Any]:
    """A response as the page shows it."""
    starts = [-1, *row["step_ends"][:-1]]
    steps = zip(row["steps"], starts, row["step_ends"], row["gains"], row["penalties"], strict=True)
    return {
        "correct": row.get("correct"),
        "tokens": row["length"],
        "curve": [round(value, 4) for value in row["answer_logprobs"]],
        "steps": [
            {"text": text, "tokens": end - start, "gain": round(gain, 4), "penalty": round(penalty, 4)}
            for text, start, end, gain, penalty in steps
        ],
        "rest": row["response"][sum(map(len, row["steps"])) :],
    }


def render(data: dict[str, Any]) -> str:
    """The page: template and data in one file."""
    # Inside a script element only "</" could end it early.
    text = json.dumps(data, ensure_ascii=False).replace("</", "<\\/")
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, text)
