"""The page's data, and the HTML around it."""

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from openrlhf_swap.algorithm.advantages import step_credit
from openrlhf_swap.algorithm.batch import StepBatch, StepTrace
from openrlhf_swap.algorithm.known import known_in
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.evaluation.page.formulas import Tree, split_formulas, to_tree
from openrlhf_swap.evaluation.traces import label_of, read_scored, read_steps
from openrlhf_swap.files import Row
from openrlhf_swap.objectives.registry import coefficients
from openrlhf_swap.score import turns_of

FOLDER = Path(__file__).parent
TEMPLATE = FOLDER / "page.html"
SCRIPT = FOLDER / "page.js"
# Title of each chart of a training run -> the metric of each of its lines.
CHARTS = {
    "tokens per rollout": {"all": "length/mean", "target": "length/target"},
    "accuracy of rollouts": {"accuracy": "swap/accuracy"},
}
# A step's number on the page -> the field of a scored trace that may have it for each step.
NUMBERS = {
    "gain": "gains",
    "change": "local_gains",
    "penalty": "penalties",
    "need": "need",
}
DECIMALS = 4
Formulas = dict[str, Tree]


def add_penalties(rows: Sequence[Row], config: SwapConfig) -> None:
    """Add `penalties`, in nats, one for each step, to each row.

    The rows of one problem are a group. A step's penalty is P w_k, and with `step_price` weights
    its share K w_k mu of the baseline is added. The steps of a response have None if its
    log-probabilities are not finite, or if its step ends do not fit its length.
    """
    numbers = coefficients(config)
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.get("benchmark", ""), row["problem"]].append(row)
    for group in groups.values():
        traces = [_trace(row) for row in group]
        credit = step_credit(StepBatch.from_traces([traces]), numbers)
        penalised = credit.penalties
        if numbers.baseline_by_weights:
            divisor = credit.deviation.nan_to_num() + numbers.eps
            penalised = penalised + credit.step_baselines * divisor
        for row, trace, penalties in zip(group, traces, penalised[0].tolist(), strict=True):
            count = len(row["gains"])
            # Nothing is scored where all responses are incorrect: their penalties are 0.
            known = (penalties + [0.0] * count)[:count]
            row["penalties"] = known if trace.step_ends else [None] * count


def _trace(row: Row) -> StepTrace:
    """A response for the arithmetic of training; without steps if they cannot be used."""
    correct = bool(row.get("correct"))
    scores = row["answer_logprobs"]
    ends = row["step_ends"]
    if ends[-1] < row["length"] and all(map(math.isfinite, scores)):
        return StepTrace(row["length"], correct, scores, ends)
    return StepTrace(row["length"], correct)


def unified(row: Row) -> Row:
    """A scored trace of any origin in one form.

    A row of an evaluation has tokens and `correct`, a row of a run's table a prompt and a reward.
    """
    reward = row.get("reward")
    length = row.get("tokens", row.get("length"))
    return {
        **row,
        "problem": str(row.get("problem", row.get("prompt"))),
        "response": "".join(turn["action"] for turn in turns_of(row)) or row["response"],
        "length": row["step_ends"][-1] + 1 if length is None else length,
        "correct": row.get("correct", None if reward is None else reward > 0),
    }


def page_data(files: Sequence[Path], config: SwapConfig, limit: int) -> dict[str, Any]:
    """Column names, at most `limit` problems with each column's responses, and their formulas.

    Each of `files`, or of folders of evaluations, is a column. `config` has the settings of the
    penalties. Raises DataError for a column without scored traces.
    """
    columns = []
    for file in files:
        rows = [unified(row) for row in read_scored(file)]
        add_penalties(rows, config)
        columns.append(rows)
    problems: dict[tuple[str, str], list[list[Row]]] = {}
    for place, rows in enumerate(columns):
        for row in rows:
            benchmark = row.get("benchmark", row.get("dataset", ""))
            key = (str(benchmark), row["problem"])
            if key not in problems:
                problems[key] = [[] for _ in files]
            problems[key][place].append(row)
    fullest = sorted(problems, key=lambda key: -sum(map(bool, problems[key])))
    formulas: Formulas = {}
    return {
        "title": "Where the length went",
        "names": [label_of(file) for file in files],
        "problems": [_problem(*key, problems[key], formulas) for key in fullest[:limit]],
        "formulas": formulas,
    }


def charts(metrics: Path) -> list[dict[str, Any]]:
    """A training run's curves, from its metrics.jsonl; DataError if it holds no steps.

    A metric that no step has is left out: there is a target for some objectives only.
    """
    run = metrics.absolute().parent.name
    rows = read_steps(metrics, [name for names in CHARTS.values() for name in names.values()])
    steps = [row["step"] for row in rows]
    drawn = []
    for title, names in CHARTS.items():
        lines = {}
        for line, name in names.items():
            values = [row.get(name) for row in rows]
            if set(values) != {None}:
                lines[line] = values
        drawn.append({"title": f"{run}: {title}", "steps": steps, "lines": lines})
    return drawn


def render(data: Mapping[str, Any]) -> str:
    """The page: template, script and data in one file.

    `data` is what `page_data` returns, optionally with a `summary` to show above it: `notes`
    (texts), `tables` (`header` and `rows` of texts) and `charts`.
    """
    known = json.loads(json.dumps(data), parse_constant=lambda _: None)  # JSON itself has no NaN
    # Without "<", no text can end the script element that holds it, or open a comment in it.
    text = json.dumps(known, ensure_ascii=False).replace("<", "\\u003c")
    script = SCRIPT.read_text(encoding="utf-8")
    page = TEMPLATE.read_text(encoding="utf-8").replace("__SCRIPT__", script)
    return page.replace("__DATA__", text)


def _problem(
    benchmark: str,
    problem: str,
    columns: Sequence[Sequence[Row]],
    formulas: Formulas,
) -> Row:
    """A problem as the page shows it.

    Texts are split at formulas, whose trees are added to `formulas`.
    """
    (answer, *_) = [str(row["answer"]) for rows in columns for row in rows]
    # Data sets omit the delimiters.
    if "\\" in answer and "$" not in answer and to_tree(answer, False):
        answer = f"${answer}$"
    shown = []
    for rows in columns:
        shown.append([_response(row, formulas) for row in rows])
    return {
        "benchmark": benchmark,
        "text": split_formulas(problem, formulas),
        "answer": split_formulas(answer, formulas),
        "columns": shown,
    }


def _response(row: Row, formulas: Formulas) -> Row:
    """A response as the page shows it."""
    texts = row["steps"]
    ends = row["step_ends"]
    starts = [-1, *ends[:-1]]
    observations = _observations(row, formulas)
    steps = []
    places = list(accumulate(map(len, texts)))  # where each step ends in the text
    for number, text in enumerate(texts):
        place = places[number]
        start = starts[number]
        end = ends[number]
        step = {
            "text": split_formulas(text, formulas),
            "tokens": None if start is None or end is None else end - start,
            **observations.get(place, {}),
        }
        for name, field in NUMBERS.items():
            if field in row:
                step[name] = _rounded(row[field][number])
        steps.append(step)
    rest = row["response"][sum(map(len, texts)) :]
    known = known_in(row["answer_logprobs"], ends)
    return {
        "correct": row.get("correct"),
        "tokens": row["length"],
        "curve": list(map(_rounded, row["answer_logprobs"])),
        "known": known and dataclasses.asdict(known),
        "steps": steps,
        "rest": split_formulas(rest, formulas),
    }


def _observations(row: Row, formulas: Formulas) -> dict[int, Row]:
    """The observations of a response, by the place in the text where their turn ends.

    Each has the turn's number. A turn without an observation, as the last one, has no entry.
    """
    found = {}
    end = 0
    for number, turn in enumerate(turns_of(row), start=1):
        end += len(turn["action"])
        if turn.get("observation"):
            observation = split_formulas(turn["observation"], formulas)
            found[end] = {"turn": number, "observation": observation}
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS)
