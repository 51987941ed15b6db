r"""Tables of evaluations.

    openrlhf-swap eval report outputs/eval/base outputs/eval/swap --format markdown --paper 1.5B

Accuracy is pass@1: the share of correct samples per problem, averaged over problems, with a 95%
bootstrap interval over problems. With several evaluations, also prints the difference of each pair
with paired-bootstrap intervals.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
from tabulate import tabulate

from openrlhf_swap.command import Parser, counted
from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.evaluation.measures import (
    Evaluation,
    Measures,
    measure_evaluations,
    paired_difference,
    without_white_space,
)
from openrlhf_swap.evaluation.samples import (
    SETTINGS,
    SampleFiles,
    files_as_written,
    flag_of,
    graded_benchmarks,
    read_settings,
    settings_path,
    thought_budget,
)
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rewards.verifiers import GRADER_FLAG, MATH
from openrlhf_swap.runs.diagnostics import MANY_LOOPS
from openrlhf_swap.runs.provenance import shown

PAPER_ROWS = Path(__file__).parent / "paper_rows.csv"
PAPER_TITLE = "accuracy % / tokens as reported in the paper, and their averages; not measured here"
# The title of a column -> its cell, filled with a benchmark's measures.
COLUMNS = {
    "pass@1 %": "{accuracy}",
    "95%": "{accuracy_low}-{accuracy_high}",
    "tokens": "{tokens}",
    "median": "{tokens_median}",
    "correct": "{tokens_correct}",
    "wrong": "{tokens_wrong}",
    "thinking": "{tokens_thinking}",
    "answer": "{tokens_answer}",
    "cut off %": "{truncated}",
    "loops %": "{looping}",
    "length~right": "{length_correctness}",
    "acc./1k": "{accuracy_per_1k_tokens}",
    "pass@k %": "{pass@k} (k={samples})",
    "maj@k %": "{maj@k} (k={samples})",
}
# Of evaluations with scored traces.
KNOWN_COLUMN = {"after known %": "{known_after}"}
COUNTS = ("tokens", "problems", "samples")  # measures that are no shares
DIFFERENCE = ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"]
# A format -> tabulate's name for it.
FORMATS = {
    "terminal": "plain",
    "markdown": "github",
    "latex": "latex_booktabs",
    "csv": "",
}
Runs = Mapping[str, Evaluation]


@dataclass(frozen=True)
class TextTable:
    """A header and rows of texts."""

    header: list[str]
    rows: list[list[str]]


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = Parser("openrlhf-swap eval report", __doc__)
    add = parser.add_argument
    add("folders", type=Path, nargs="+", help="folders of evaluations; the baseline first")
    add("--format", choices=FORMATS, default="terminal")
    text = "also print the paper's numbers, marked as such"
    add("--paper", choices=["1.5B", "7B"], help=text)
    args = parser.parse_args(argv)
    runs = measure_evaluations(args.folders)
    warnings = settings_that_differ(args.folders) + gradings_that_differ(args.folders, runs)
    for warning in warnings + many_loops(runs):
        print(f"warning: {warning}", file=sys.stderr)
    tables = [evaluation_table(runs, args.format)]
    if args.format != "csv":
        tables += budget_tables(args.folders, runs, args.format)
        tables += difference_tables(runs, args.format)
    if args.paper:
        tables.append(paper_table(args.paper, args.format))
    print("\n\n".join(tables))


def settings_that_differ(folders: Sequence[Path]) -> list[str]:
    """One line for each setting that differs, apart from those of the model and the seed."""
    runs = {folder: read_settings(folder) for folder in folders}
    warnings = []
    for folder, settings in runs.items():
        if not settings and any(runs.values()):
            warnings.append(f"{settings_path(folder)} is missing, so its settings are not compared")
    for name in SETTINGS:
        if name in ("model", "seed", "end_of_thought"):
            continue
        values = {}
        for folder, settings in runs.items():
            with files_as_written(folder):
                if settings:
                    values[folder] = settings[name]
        warnings += _warn_if_different(flag_of(name), values)
    return warnings


def _warn_if_different(name: str, values: Mapping[Any, object]) -> list[str]:
    """A line if a value, here by evaluation, is not the same everywhere."""
    if len(set(values.values())) < 2:
        return []
    listed = ", ".join(f"{shown(value)} in {place}" for place, value in values.items())
    return [f"{name} is {listed}: do not compare them"]


def gradings_that_differ(folders: Sequence[Path], runs: Runs) -> list[str]:
    """A line for each benchmark with another grader, other answers or other counts of samples."""
    found: dict[str, list[SampleFiles]] = {}
    for folder in folders:
        for files in graded_benchmarks(folder):
            found.setdefault(files.benchmark, []).append(files)
    warnings = []
    for benchmark, evaluations in found.items():
        graders = {}
        answers: dict[str, dict[Path, set[str]]] = {}
        for files in evaluations:
            with files_as_written(files.folder):
                for row in files.rows("problems"):
                    graders[files.folder] = row.get("grader", MATH)
                    by_folder = answers.setdefault(without_white_space(row["problem"]), {})
                    by_folder.setdefault(files.folder, set()).add(strip_answer(row["answer"]))
        warnings += _warn_if_different(f"{GRADER_FLAG} of {benchmark}", graders)
        different = 0
        for by_folder in answers.values():
            first, *others = by_folder.values()
            different += any(other != first for other in others)
        if different:
            problems = counted(different, "problem")
            warnings.append(f"{problems} of {benchmark} with other answers: do not compare them")
        counts = {}
        for run, benchmarks in runs.items():
            if benchmark in benchmarks:
                counts[run] = round(benchmarks[benchmark].values["samples"])
        warnings += _warn_if_different(f"k of pass@k and maj@k of {benchmark}", counts)
    return warnings


def many_loops(runs: Runs) -> list[str]:
    """A line for each benchmark on which over a tenth of the responses loop."""
    warnings = []
    for run, benchmarks in runs.items():
        for name, measured in benchmarks.items():
            share = measured.values.get("looping", 0.0)
            if share > MANY_LOOPS:
                warnings.append(
                    f"{share:.0%} of the responses of {run} on {title_of(name)} loop, saying the "
                    "same again and again: a higher --temperature may help, and more --max-tokens "
                    "do not"
                )
    return warnings


def evaluation_table(runs: Runs, style: str) -> str:
    """A table of evaluations, by name, in one of FORMATS; csv has all measures."""
    if style != "csv":
        return _formatted(evaluation_cells(runs), style)
    lines = []
    for run, benchmarks in runs.items():
        for name, measured in benchmarks.items():
            lines.append({"evaluation": run, "benchmark": name, **measured.values})
    return str(pd.DataFrame(lines).to_csv(index=False)).rstrip("\n")


def evaluation_cells(runs: Runs, chosen: Mapping[str, str] = COLUMNS) -> TextTable:
    """The table of evaluations; `chosen` are its columns.

    There is one row per evaluation and benchmark, and one for the average over several. An
    evaluation that lacks a benchmark of the others has no average, which would not be comparable.
    """
    names = set(chain.from_iterable(runs.values()))
    measured = chain.from_iterable(benchmarks.values() for benchmarks in runs.values())
    found = set(chain.from_iterable(each.values for each in measured))
    columns = dict(chosen)
    if "known_after" in found:
        columns |= KNOWN_COLUMN
    rows = []
    for run, benchmarks in runs.items():
        for name, each in benchmarks.items():
            problems = f"{each.values['problems']:.0f}"
            rows.append([run, title_of(name), problems, *_cells(each.values, columns)])
        if len(names) > 1 and names <= benchmarks.keys():
            means = {}
            for key in ("accuracy", "tokens"):
                means[key] = fmean(each.values[key] for each in benchmarks.values())
            rows.append([run, "Average", "", *_cells(means, columns)])
    return TextTable(["evaluation", "benchmark", "problems", *columns], rows)


def _cells(values: Mapping[str, float], columns: Mapping[str, str]) -> list[str]:
    """The cells of measures: counts without decimals, shares in percent.

    A cell is empty if one of its measures is missing or NaN.
    """
    texts = {}
    for name, value in values.items():
        if not isnan(value):
            texts[name] = _text(name, value)
    cells = []
    for cell in columns.values():
        try:
            cells.append(cell.format_map(texts))
        except KeyError:
            cells.append("")
    return cells


def _text(name: str, value: float) -> str:
    if name.startswith(COUNTS):
        return f"{value:.0f}"
    if name == "length_correctness":  # a correlation
        return f"{value:+z.2f}"
    return f"{100 * value:.1f}"


def budget_cells(folders: Sequence[Path], runs: Runs) -> TextTable:
    """Accuracy and tokens over budgets of the thought: a row for each model and benchmark.

    `folders` are those of the evaluations. A model has the name of the folder in which `eval run
    --thought-budgets` wrote its evaluations.
    """
    curves: dict[tuple[str, str], dict[int, str]] = {}
    for folder, benchmarks in zip(folders, runs.values(), strict=True):
        budget = thought_budget(folder)
        if budget is None:
            continue
        for name, measured in benchmarks.items():
            (cell,) = _cells(measured.values, {"": "{accuracy}% / {tokens}"})
            curve = curves.setdefault((folder.absolute().parent.name, title_of(name)), {})
            curve[budget] = cell
    budgets = sorted(set(chain.from_iterable(curves.values())))
    rows = []
    for (model, benchmark), curve in curves.items():
        rows.append([model, benchmark, *(curve.get(budget, "") for budget in budgets)])
    return TextTable(["pass@1 / tokens by thought budget", "benchmark", *map(str, budgets)], rows)


def budget_tables(folders: Sequence[Path], runs: Runs, style: str) -> list[str]:
    """The table of budgets; none without evaluations that have one."""
    table = budget_cells(folders, runs)
    return [_formatted(table, style)] if table.rows else []


def difference_cells(runs: Runs) -> tuple[TextTable, list[str]]:
    """The table of each evaluation minus each earlier one, on the problems they share.

    The second value has a note for each pair that shares no problem of a benchmark.
    """
    rows = []
    notes = []
    for (earlier, first), (later, second) in combinations(runs.items(), 2):
        for name in second:
            if name not in first:
                continue
            cells = _difference(first[name], second[name])
            if cells:
                rows.append([f"{later} - {earlier}", title_of(name), *cells])
            else:
                shared = f"{later} and {earlier} share no problem of the same text"
                notes.append(f"no difference on {title_of(name)}: {shared}")
    return TextTable(DIFFERENCE, rows), notes


def difference_tables(runs: Runs, style: str) -> list[str]:
    """The differences as a table, and the notes."""
    table, notes = difference_cells(runs)
    return [_formatted(table, style), *notes] if table.rows else notes


def _difference(first: Measures, second: Measures) -> list[str]:
    """Cells of the shared problems and of second minus first in accuracy and tokens.

    Problems are the same if their texts are, apart from white space: the hub and a local copy give
    a problem different ids. Without a shared problem there are no cells.
    """
    pairs = second.problems.merge(first.problems, on="problem", suffixes=("", "_first"))
    if pairs.empty:
        return []
    cells = [str(len(pairs))]
    for name, scale, form in (("accuracy", 100, "+z.1f"), ("tokens", 1, "+z.0f")):
        earlier, later = pairs[f"{name}_first"], pairs[name]
        if earlier.isna().any() or later.isna().any():
            cells.append("")
            continue
        difference = paired_difference(earlier.to_numpy(), later.to_numpy())
        numbers = [format(scale * value, form) for value in difference]
        cells.append("{} ({} to {})".format(*numbers))
    return cells


def paper_table(model: str, style: str) -> str:
    """The paper's accuracy and tokens for a model size, and their averages, marked as such."""
    paper = pd.read_csv(PAPER_ROWS, dtype=str)
    paper = paper[paper["model"] == model].set_index("method").drop(columns="model")
    names = list(dict.fromkeys(column.rpartition("_")[0] for column in paper))
    rows = []
    for method, cells in paper.iterrows():
        accuracy = [cells[f"{name}_accuracy"] for name in names]
        tokens = [cells[f"{name}_tokens"] for name in names]
        accuracy.append(f"{fmean(map(float, accuracy)):.1f}")
        tokens.append(f"{fmean(map(float, tokens)):.0f}")
        pairs = zip(accuracy, tokens, strict=True)
        rows.append([f"{method} (paper)", *map(" / ".join, pairs)])
    header = ["method", *map(title_of, names), "Average"]
    return f"{model}, {PAPER_TITLE}\n\n{_formatted(TextTable(header, rows), style)}"


def _formatted(table: TextTable, style: str) -> str:
    """A table as text; numbers are right-aligned for the terminal."""
    form = FORMATS[style]
    rows = table.rows
    if style != "terminal":
        return tabulate(rows, table.header, tablefmt=form, stralign=None, disable_numparse=True)
    alignment = ["left", "left"] + ["right"] * (len(table.header) - 2)
    # As a header, tabulate would make the columns wider than needed; as a row it does not.
    lines = [table.header, *rows]
    return tabulate(lines, tablefmt=form, colalign=alignment, disable_numparse=True)
