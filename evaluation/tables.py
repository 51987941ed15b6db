"""Tables of evaluations for the terminal, documents and other programs."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

import numpy as np
from tabulate import tabulate

from evaluation.measures import Evaluation, Measures
from evaluation.stats import paired_difference
from openrlhf_swap.data.benchmarks import title_of

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
# Of evaluations with budgets of thought: the area under accuracy over the logarithm of the budget, and its range.
AREAS = {"area_cut": "area % (cut)", "area_vllm": "area % (vllm)"}


def evaluation_table(runs: Mapping[str, Evaluation], style: str) -> str:
    """A table of evaluations, keyed by name; `style`: terminal, markdown, csv, or latex (the paper's layout)."""
    if style == "latex":
        return _latex(runs)
    if style == "csv":
        return _csv(runs)
    return _table(*evaluation_cells(runs), style)


def evaluation_cells(runs: Mapping[str, Evaluation]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table: one row per evaluation and benchmark."""
    found = {key for measures in runs.values() for measured in measures.values() for key in measured.values}
    areas = [key for key in AREAS if key in found]
    rows = [
        [
            *(run, title_of(name), f"{measured.values['problems']:.0f}", *_cells(measured.values)),
            *(_area(measured.values, key) for key in areas),
        ]
        for run, measures in runs.items()
        for name, measured in measures.items()
    ]
    return ["evaluation", "benchmark", "problems", *COLUMNS.values(), *(AREAS[key] for key in areas)], rows


def difference_table(runs: Mapping[str, Evaluation], style: str) -> str:
    """Each evaluation minus the first, on the problems they share; empty if none shares any."""
    (base_name, base), *others = runs.items()
    rows = [
        [f"{run} - {base_name}", title_of(name), *cells]
        for run, measures in others
        for name in measures.keys() & base.keys()
        if (cells := _difference(base[name], measures[name]))
    ]
    header = ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"]
    return _table(header, sorted(rows), style) if rows else ""


def paper_table(model: str) -> str:
    """The paper's accuracy and tokens for a model size, marked as such."""
    with open(PAPER_ROWS, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    names = list(dict.fromkeys(key.rpartition("_")[0] for key in rows[0] if "_" in key))
    cells = [
        [f"{row['method']} (paper)", *(f"{row[f'{name}_accuracy']} / {row[f'{name}_tokens']}" for name in names)]
        for row in rows
    ]
    title = f"{model}, accuracy % / tokens as reported in the paper; not measured here"
    return title + "\n" + _table(["method", *map(title_of, names)], cells, "terminal")


def _cells(values: Mapping[str, float]) -> list[str]:
    """A benchmark's cells in the order of COLUMNS; shares are given in percent."""
    k = f"{values['samples']:.0f}"
    cells = {
        key: f"{value:.0f}" if key.startswith("tokens") else f"{100 * value:.1f}" for key, value in values.items()
    }
    cells["interval"] = f"{cells['accuracy_low']}-{cells['accuracy_high']}"
    cells |= {"pass@k": f"{cells[f'pass@{k}']} (k={k})", "maj@k": cells[f"maj@{k}"]}
    return [cells[key] for key in COLUMNS]


def _area(values: Mapping[str, float], key: str) -> str:
    """The area under a curve with its budgets, outside of which it says nothing; empty without a curve."""
    if key not in values:
        return ""
    least, most = (values[f"{key.replace('area', 'budget')}_{end}"] for end in ("least", "most"))
    return f"{100 * values[key]:.1f} ({least:.0f}-{most:.0f})"


def _difference(first: Measures, second: Measures) -> list[str]:
    """Cells of the shared problems and of second minus first in accuracy and tokens; [] if none are shared."""
    place = {problem: i for i, problem in enumerate(first.problems)}
    shared = [i for i, problem in enumerate(second.problems) if problem in place]
    if not shared:
        return []
    pairs = [place[second.problems[i]] for i in shared]
    accuracy = 100 * np.array(paired_difference(first.accuracy[pairs], second.accuracy[shared]))
    tokens = paired_difference(first.tokens[pairs], second.tokens[shared])
    return [
        str(len(shared)),
        "{:+z.1f} ({:+z.1f} to {:+z.1f})".format(*accuracy),
        "{:+z.0f} ({:+z.0f} to {:+z.0f})".format(*tokens),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    """A table of text cells: Markdown, or for the terminal, where numbers are right-aligned."""
    if style == "markdown":
        return tabulate(rows, header, tablefmt="github", stralign=None, disable_numparse=True)
    alignment = ["left", "left"] + ["right"] * (len(header) - 2)
    # As a header, tabulate would make the columns wider than needed; as a row it does not.
    return tabulate([header, *rows], tablefmt="plain", colalign=alignment, disable_numparse=True)


def _csv(runs: Mapping[str, Evaluation]) -> str:
    """All measures of all evaluations; a cell is empty if an evaluation lacks that measure."""
    rows: list[dict[str, str | float]] = [
        {"evaluation": run, "benchmark": name, **measured.values}
        for run, measures in runs.items()
        for name, measured in measures.items()
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(dict.fromkeys(chain.from_iterable(rows))), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue().rstrip("\n")


def _latex(runs: Mapping[str, Evaluation]) -> str:
    """The paper's layout: a row per evaluation, accuracy and tokens per benchmark, and their average."""
    names = list(dict.fromkeys(chain.from_iterable(runs.values())))
    titles = " & ".join(rf"\multicolumn{{2}}{{c}}{{{title_of(name)}}}" for name in [*names, "Average"])
    lines = [
        r"\begin{tabular}{l" + "rr" * (len(names) + 1) + "}",
        r"\toprule",
        rf" & {titles} \\",
        "Method" + r" & Acc. & Tokens" * (len(names) + 1) + r" \\",
        r"\midrule",
    ]
    for run, measures in runs.items():
        cells = [_average(measures, group) for group in [*([name] for name in names), names]]
        lines.append(" & ".join([run.replace("_", r"\_"), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _average(measures: Evaluation, names: Sequence[str]) -> str:
    """Two LaTeX cells: accuracy in percent and tokens, averaged over benchmarks."""
    if not measures.keys() >= set(names):
        return "-- & --"  # an average over different benchmarks would not be comparable
    accuracy, tokens = (fmean(measures[name].values[key] for name in names) for key in ("accuracy", "tokens"))
    return f"{100 * accuracy:.1f} & {tokens:.0f}"
