"""The page's data, and the HTML around it."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from openrlhf_swap.algorithm.advantages import step_signals
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page.formulas import Tree, split_formulas, to_tree
from openrlhf_swap.evaluation.traces import label_of, read_scored, read_steps
from openrlhf_swap.files import Row
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.score import turns_of

TEMPLATE, SCRIPT = (Path(__file__).parent / name for name in ("page.html", "page.js"))
# Title of each chart of a training run -> the metric of each of its lines.
CHARTS = {
    "tokens per rollout": {"all": "length/mean", "target": "length/target"},
    "accuracy of rollouts": {"accuracy": "swap/accuracy"},
}


def add_penalties(rows: Sequence[Row], config: SwapConfig) -> None:
    """Add `penalties`, what each step pays in nats, to each row; its group is the file's responses
    to its problem.

    P w_k, and with `step_price` weights the step's share K w_k mu of the price, too. None for each
    step of a response whose log-probabilities are not finite, or whose step ends do not fit its
    length.
    """
    numbers = coefficients(config)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        row["penalties"] = [None] * len(row["gains"])
        groups[row.get("benchmark", ""), row["problem"]].append(row)
    for group in groups.values():
        batch = StepBatch.from_traces([[_trace(row) for row in group]])
        signals = step_signals(batch, numbers)
        paid = signals.penalties
        if numbers.price_by_weights:
            paid = paid + signals.charges * (signals.deviation.nan_to_num() + numbers.eps)
        for row, penalties in zip(group, paid[0].tolist(), strict=True):
            if _trace(row).step_ends:
                count = len(row["gains"])
                row["penalties"] = (penalties + [0.0] * count)[
                    :count
                ]  # none is scored where all are incorrect


def _trace(row: Row) -> StepTrace:
    """A response for the arithmetic of training; without steps if they cannot be used."""
    length, correct, scores, ends = (
        row["length"],
        row.get("correct"),
        row["answer_logprobs"],
        row["step_ends"],
    )
    known = all(map(math.isfinite, scores)) and ends[-1] < length
    return StepTrace(length, bool(correct), *((scores, ends) if known else ()))


def complete(row: Row) -> Row:
    """A scored trace in one form: of an evaluation, of a run's table (with a prompt and a reward),
    or another one.
    """
    reward = row.get("reward")
    return {
        "tokens_left": [],
        **row,
        "problem": str(row.get("problem", row.get("prompt"))),
        "response": "".join(turn["action"] for turn in turns_of(row)) or row["response"],
        "length": row.get("tokens", row.get("length", row["step_ends"][-1] + 1)),
        "correct": row.get("correct", None if reward is None else reward > 0),
    }


def page_data(files: Sequence[Path], config: SwapConfig, limit: int) -> dict[str, Any]:
    """Column names, the problems with each column's responses (at most `limit`), and the formulas
    in them.

    Each of `files`, or of folders of evaluations, is a column; DataError for one without scored
    traces. `config` has the settings of the penalties.
    """
    problems: dict[tuple[str, str], list[list[Row]]] = defaultdict(lambda: [[] for _ in files])
    for column, file in enumerate(files):
        rows = list(map(complete, read_scored(file)))
        add_penalties(rows, config)
        for row in rows:
            problems[str(row.get("benchmark", row.get("dataset", ""))), row["problem"]][
                column
            ].append(row)
    fullest = sorted(problems.items(), key=lambda item: -sum(map(bool, item[1])))
    formulas: dict[str, Tree] = {}
    return {
        "title": "Where the length went",
        "names": list(map(label_of, files)),
        "problems": [_problem(*key, columns, formulas) for key, columns in fullest[:limit]],
        "formulas": formulas,
    }


def charts(metrics: Path) -> list[dict[str, Any]]:
    """A training run's curves, from its metrics.jsonl; DataError if it holds no steps."""
    rows = read_steps(metrics)
    steps = [row["step"] for row in rows]
    drawn = []
    for title, keys in CHARTS.items():
        lines = {name: [row.get(key) for row in rows] for name, key in keys.items()}
        # There is a target only in steps with a correct response, and only for some objectives.
        lines = {name: values for name, values in lines.items() if set(values) != {None}}
        drawn.append(
            {"title": f"{metrics.absolute().parent.name}: {title}", "steps": steps, "lines": lines}
        )
    return drawn


def render(data: Mapping[str, Any]) -> str:
    """The page: template, script and data in one file.

    `data` is what `page_data` returns, optionally with a `summary` to show above it: `notes`
    (texts), `tables` (`header` and `rows` of texts) and `charts`.
    """
    known = json.loads(json.dumps(data), parse_constant=lambda _: None)  # JSON itself has no NaN
    # Without "<", no text can end the script element that holds it, or open a comment in it.
    text = json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")
    page = TEMPLATE.read_text(encoding="utf-8").replace(
        "__SCRIPT__", SCRIPT.read_text(encoding="utf-8")
    )
    return page.replace("__DATA__", text)


def _problem(
    benchmark: str, problem: str, columns: Sequence[Sequence[Row]], formulas: dict[str, Tree]
) -> Row:
    """A problem as the page shows it; texts are split at formulas, whose trees are added to
    `formulas`.
    """
    answer = str(next(row["answer"] for rows in columns for row in rows))
    if "\\" in answer and "$" not in answer and to_tree(answer, False):
        answer = f"${answer}$"  # data sets omit the delimiters
    return {
        "benchmark": benchmark,
        "text": split_formulas(problem, formulas),
        "answer": split_formulas(answer, formulas),
        "columns": [[_response(row, formulas) for row in rows] for rows in columns],
    }


def _response(row: Row, formulas: dict[str, Tree]) -> Row:
    """A response as the page shows it."""
    ends = row["step_ends"]
    numbers = zip(row["gains"], row["local_gains"], row["penalties"], strict=True)
    steps = zip(
        row["steps"],
        [-1, *ends[:-1]],
        ends,
        numbers,
        accumulate(map(len, row["steps"])),
        strict=True,
    )
    turns = turns_of(row)
    # Where a turn ends in the text -> its number and what the environment answered: an observation
    # follows a step.
    turn_ends = dict(
        zip(accumulate(len(turn["action"]) for turn in turns), enumerate(turns, 1), strict=True)
    )
    return {
        "correct": row.get("correct"),
        "tokens": row["length"],
        "curve": list(map(_rounded, row["answer_logprobs"])),
        "left": list(map(_rounded, row["tokens_left"])) if any(row["tokens_left"]) else [],
        "steps": [
            {
                "text": split_formulas(text, formulas),
                "tokens": None if start is None or end is None else end - start,
                **_observed(turn_ends.get(place), formulas),
                **{
                    name: _rounded(value)
                    for name, value in zip(("gain", "change", "penalty"), values, strict=True)
                },
            }
            for text, start, end, values, place in steps
        ],
        "rest": split_formulas(row["response"][sum(map(len, row["steps"])) :], formulas),
    }


def _observed(turn: tuple[int, Row] | None, formulas: dict[str, Tree]) -> Row:
    """What follows a step that ends a turn; nothing does after the last turn, or inside one."""
    if turn is None or not turn[1]["observation"]:
        return {}
    return {"turn": turn[0], "observation": split_formulas(turn[1]["observation"], formulas)}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
