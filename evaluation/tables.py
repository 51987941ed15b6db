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

from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.evaluation.measures import Evaluation, Measures
from openrlhf_swap.evaluation.stats import paired_difference

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
    """Header and rows of the table: one row per evaluation and benchmark, and one for the average over several.

    An evaluation that lacks a benchmark of the others has no average, which would not be comparable.
    """
    names = _benchmarks(runs)
    found = {key for measures in runs.values() for measured in measures.values() for key in measured.values}
    areas = [key for key in AREAS if key in found]
    rows: list[list[str]] = []
    for run, measures in runs.items():
        rows += [
            [
                *(run, title_of(name), f"{measured.values['problems']:.0f}", *_cells(measured.values)),
                *(_area(measured.values, key) for key in areas),
            ]
            for name, measured in measures.items()
        ]
        if len(names) > 1 and (average := _average(measures, names)):
            cells = dict(zip(("accuracy", "tokens"), average, strict=True))
            rows.append([run, "Average", "", *(cells.get(key, "") for key in [*COLUMNS, *areas])])
    return ["evaluation", "benchmark", "problems", *COLUMNS.values(), *(AREAS[key] for key in areas)], rows


def difference_table(runs: Mapping[str, Evaluation], style: str) -> str:
    """Each evaluation minus the first, on the problems they share; empty if none shares any."""
    (base_name, base), *others = runs.items()
    rows = [
        [f"{run} - {base_name}", title_of(name), *cells]
        for run, measures in others
        for name in measures
        if name in base and (cells := _difference(base[name], measures[name]))
    ]
    header = ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"]
    return _table(header, rows, style) if rows else ""


def without_difference(runs: Mapping[str, Evaluation]) -> list[str]:
    """One line for each benchmark on which an evaluation has no problem in common with the first."""
    (base_name, base), *others = runs.items()
    return [
        f"no difference on {title_of(name)}: {run} and {base_name} share no problem of the same text"
        for run, measures in others
        for name in measures
        if name in base and not _pairs(base[name], measures[name])
    ]


def paper_table(model: str, style: str) -> str:
    """The paper's accuracy and tokens for a model size, and their averages, marked as such; no CSV."""
    with open(PAPER_ROWS, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    names = list(dict.fromkeys(key.rpartition("_")[0] for key in rows[0] if "_" in key))
    cells = {f"{row['method']} (paper)": _paper_cells(row, names) for row in rows}
    title = f"{model}, accuracy % / tokens as reported in the paper, and their averages; not measured here"
    if style == "latex":
        return f"% {title}\n{_tabular(names, cells)}"
    header = ["method", *map(title_of, names), "Average"]
    lines = [[method, *(" / ".join(pair) for pair in pairs)] for method, pairs in cells.items()]
    return f"{title}\n\n{_table(header, lines, style)}"


def _paper_cells(row: Mapping[str, str], names: Sequence[str]) -> list[tuple[str, str]]:
    """A method's accuracy and tokens on each benchmark, and on average."""
    accuracy, tokens = (fmean(float(row[f"{name}_{key}"]) for name in names) for key in ("accuracy", "tokens"))
    return [
        *((row[f"{name}_accuracy"], row[f"{name}_tokens"]) for name in names),
        (f"{accuracy:.1f}", f"{tokens:.0f}"),
    ]


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
    pairs = _pairs(first, second)
    if not pairs:
        return []
    here, there = map(list, zip(*pairs, strict=True))
    accuracy = 100 * np.array(paired_difference(first.accuracy[here], second.accuracy[there]))
    tokens = paired_difference(first.tokens[here], second.tokens[there])
    return [
        str(len(pairs)),
        "{:+z.1f} ({:+z.1f} to {:+z.1f})".format(*accuracy),
        "{:+z.0f} ({:+z.0f} to {:+z.0f})".format(*tokens),
    ]


def _pairs(first: Measures, second: Measures) -> list[tuple[int, int]]:
    """The places of the shared problems in first and second.

    Problems are the same if their texts are, apart from white space: those of the hub and of a local copy differ in
    their ids.
    """
    places = {"".join(problem.split()): i for i, problem in enumerate(first.problems)}
    texts = ("".join(problem.split()) for problem in second.problems)
    return [(places[text], i) for i, text in enumerate(texts) if text in places]


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
    names = _benchmarks(runs)
    groups = [*([name] for name in names), names]
    rows = {run: [_average(measures, group) or ("--", "--") for group in groups] for run, measures in runs.items()}
    return _tabular(names, rows)


def _tabular(names: Sequence[str], rows: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """LaTeX with a row of accuracy and tokens per benchmark, and of their average, for each name in `rows`."""
    titles = " & ".join(rf"\multicolumn{{2}}{{c}}{{{title_of(name)}}}" for name in [*names, "Average"])
    lines = [
        r"\begin{tabular}{l" + "rr" * (len(names) + 1) + "}",
        r"\toprule",
        rf" & {titles} \\",
        "Method" + r" & Acc. & Tokens" * (len(names) + 1) + r" \\",
        r"\midrule",
        *(" & ".join([row.replace("_", r"\_"), *chain(*pairs)]) + r" \\" for row, pairs in rows.items()),
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def _benchmarks(runs: Mapping[str, Evaluation]) -> list[str]:
    """The benchmarks of all evaluations."""
    return list(dict.fromkeys(chain.from_iterable(runs.values())))


def _average(measures: Evaluation, names: Sequence[str]) -> tuple[str, str] | None:
    """Accuracy in percent and tokens, averaged over benchmarks; None if one is missing, as that is not comparable."""
    if not measures.keys() >= set(names):
        return None
    accuracy, tokens = (fmean(measures[name].values[key] for name in names) for key in ("accuracy", "tokens"))
    return f"{100 * accuracy:.1f}", f"{tokens:.0f}"
