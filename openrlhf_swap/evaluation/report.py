r"""Tables of evaluations.

    openrlhf-swap eval report outputs/eval/base outputs/eval/swap --format markdown --paper 1.5B

Accuracy is pass@1: the share of correct samples per problem, averaged over problems, with a 95%
bootstrap interval over problems. With several evaluations, also prints the difference of each pair
with paired-bootstrap intervals.
"""

import sys
from collections.abc import Mapping, Sequence
from itertools import chain, combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd
from tabulate import tabulate

from openrlhf_swap.command import Parser
from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.evaluation.measures import (
    Evaluation,
    Measures,
    measure_evaluations,
    paired_difference,
)
from openrlhf_swap.evaluation.samples import SETTINGS, flag_of, read_settings
from openrlhf_swap.runs.provenance import shown

PAPER_ROWS = Path(__file__).parent / "paper_rows.csv"
COLUMNS = {
    "accuracy": "pass@1 %",
    "interval": "95%",
    "tokens": "tokens",
    "tokens_median": "median",
    "tokens_correct": "correct",
    "tokens_wrong": "wrong",
    "tokens_thinking": "thinking",
    "tokens_answer": "answer",
    "truncated": "cut off %",
    "accuracy_per_1k_tokens": "acc./1k",
    "pass@k": "pass@k %",
    "maj@k": "maj@k %",
}
AREA = {"area": "area %"}  # of evaluations with budgets of thought


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = Parser("openrlhf-swap eval report", __doc__)
    parser.add_argument(
        "folders", type=Path, nargs="+", help="folders of evaluations; the baseline first"
    )
    parser.add_argument(
        "--format", choices=["terminal", "markdown", "latex", "csv"], default="terminal"
    )
    parser.add_argument(
        "--paper", choices=["1.5B", "7B"], help="also print the paper's numbers, marked as such"
    )
    args = parser.parse_args(argv)
    runs = measure_evaluations(args.folders)
    for warning in settings_that_differ(args.folders):
        print(f"warning: {warning}", file=sys.stderr)
    tables = [evaluation_table(runs, args.format)]
    if args.format != "csv":
        tables += difference_tables(runs, args.format)
    if args.paper:
        tables.append(paper_table(args.paper, args.format))
    print("\n\n".join(tables))


def settings_that_differ(folders: Sequence[Path]) -> list[str]:
    """Settings that differ between evaluations, apart from those of the model and the seed: one
    line each.
    """
    runs = {folder: settings for folder in folders if (settings := read_settings(folder))}
    warnings = []
    for name in SETTINGS:
        values = {folder: run[name] for folder, run in runs.items()}
        if name not in ("model", "seed", "end_of_thought") and len(set(values.values())) > 1:
            listed = ", ".join(f"{shown(value)} in {folder}" for folder, value in values.items())
            warnings.append(f"{flag_of(name)} is {listed}: do not compare them")
    return warnings


def evaluation_table(runs: Mapping[str, Evaluation], style: str) -> str:
    """A table of evaluations, by name, for `style`: terminal, markdown, latex or csv (all
    measures).
    """
    if style == "csv":
        lines = [
            {"evaluation": run, "benchmark": name, **measured.values}
            for run, measures in runs.items()
            for name, measured in measures.items()
        ]
        return str(pd.DataFrame(lines).to_csv(index=False)).rstrip("\n")
    return _table(*evaluation_cells(runs), style)


def evaluation_cells(
    runs: Mapping[str, Evaluation], chosen: Mapping[str, str] = COLUMNS
) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: one row per evaluation and benchmark, and one for the average
    over several.

    An evaluation that lacks a benchmark of the others has no average, which would not be
    comparable. `chosen` are the measures that it has, by column.
    """
    names = list(dict.fromkeys(chain.from_iterable(runs.values())))
    has_areas = any(
        "area" in measured.values for measures in runs.values() for measured in measures.values()
    )
    columns = {**chosen, **(AREA if has_areas else {})}
    rows: list[list[str]] = []
    for run, measures in runs.items():
        for name in measures:
            cells = _cells(measures[name].values)
            rows.append(
                [run, title_of(name), cells["problems"], *(cells.get(key, "") for key in columns)]
            )
        if len(names) > 1 and measures.keys() >= set(names):
            averaged = ("accuracy", "tokens")
            cells = _texts(
                {key: fmean(each.values[key] for each in measures.values()) for key in averaged}
            )
            rows.append([run, "Average", "", *(cells.get(key, "") for key in columns)])
    return ["evaluation", "benchmark", "problems", *columns.values()], rows


def _cells(values: Mapping[str, float]) -> dict[str, str]:
    """A benchmark's cells; an area with its budgets, outside of which it says nothing."""
    cells = _texts(values)
    k = f"{values['samples']:.0f}"
    cells |= {"pass@k": f"{cells[f'pass@{k}']} (k={k})", "maj@k": cells[f"maj@{k}"]}
    cells["interval"] = f"{cells['accuracy_low']}-{cells['accuracy_high']}"
    if "area" in cells:
        cells["area"] += f" ({cells['budget_least']}-{cells['budget_most']})"
    return cells


def _texts(values: Mapping[str, float]) -> dict[str, str]:
    """Measures as texts: shares are given in percent."""
    return {
        key: f"{value:.0f}"
        if key.startswith(("tokens", "budget", "problems"))
        else f"{100 * value:.1f}"
        for key, value in values.items()
    }


def difference_cells(
    runs: Mapping[str, Evaluation],
) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows: each evaluation minus each earlier one, on the problems they share; a note
    where it is none.
    """
    rows, notes = [], []
    for (earlier, first), (later, second) in combinations(runs.items(), 2):
        for name in (name for name in second if name in first):
            if cells := _difference(first[name], second[name]):
                rows.append([f"{later} - {earlier}", title_of(name), *cells])
            else:
                pair = f"{later} and {earlier}"
                notes.append(
                    f"no difference on {title_of(name)}: {pair} share no problem of the same text"
                )
    return (
        ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"],
        rows,
        notes,
    )


def difference_tables(runs: Mapping[str, Evaluation], style: str) -> list[str]:
    """The differences as a table, and the notes."""
    header, rows, notes = difference_cells(runs)
    return [*([_table(header, rows, style)] if rows else []), *notes]


def _difference(first: Measures, second: Measures) -> list[str]:
    """Cells of the shared problems and of second minus first in accuracy and tokens; [] if none are
    shared.

    Problems are the same if their texts are, apart from white space: those of the hub and of a
    local copy differ in their ids.
    """
    there, here = (
        measured.problems.assign(
            text=["".join(text.split()) for text in measured.problems["problem"]]
        )
        for measured in (second, first)
    )
    pairs = there.merge(
        here.drop_duplicates("text", keep="last"), on="text", suffixes=("", "_first")
    )
    if pairs.empty:
        return []
    accuracy, tokens = (
        np.array(paired_difference(pairs[f"{name}_first"].to_numpy(), pairs[name].to_numpy()))
        for name in ("accuracy", "tokens")
    )
    return [
        str(len(pairs)),
        "{:+z.1f} ({:+z.1f} to {:+z.1f})".format(*(100 * accuracy)),
        "{:+z.0f} ({:+z.0f} to {:+z.0f})".format(*tokens),
    ]


def paper_table(model: str, style: str) -> str:
    """The paper's accuracy and tokens for a model size, and their averages, marked as such."""
    paper = pd.read_csv(PAPER_ROWS, dtype=str)
    paper = paper[paper["model"] == model].set_index("method").drop(columns="model")
    names = list(dict.fromkeys(column.rpartition("_")[0] for column in paper))
    rows = []
    for method, cells in paper.iterrows():
        accuracy, tokens = (cells.filter(like=f"_{key}") for key in ("accuracy", "tokens"))
        average = f"{accuracy.astype(float).mean():.1f}", f"{tokens.astype(float).mean():.0f}"
        rows.append(
            [f"{method} (paper)", *map(" / ".join, [*zip(accuracy, tokens, strict=True), average])]
        )
    title = f"{model}, accuracy % / tokens as reported in the paper, and their averages; not measured here"
    return f"{title}\n\n{_table(['method', *map(title_of, names), 'Average'], rows, style)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    """A table of text cells: Markdown, LaTeX, or for the terminal, where numbers are right-aligned."""
    if style in ("markdown", "latex"):
        name = {"markdown": "github", "latex": "latex_booktabs"}[style]
        return tabulate(rows, header, tablefmt=name, stralign=None, disable_numparse=True)
    alignment = ["left", "left"] + ["right"] * (len(header) - 2)
    # As a header, tabulate would make the columns wider than needed; as a row it does not.
    return tabulate([header, *rows], tablefmt="plain", colalign=alignment, disable_numparse=True)
