r"""Tables of evaluations.

    openrlhf-swap eval report outputs/eval/base outputs/eval/swap --format markdown --paper 1.5B

Accuracy is pass@1: the share of correct samples per problem, averaged over problems, with a 95% bootstrap interval
over problems. With several evaluations, also prints the difference of each pair with paired-bootstrap intervals.
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
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation.measures import Evaluation, Measures, measure_evaluations, paired_difference
from openrlhf_swap.evaluation.samples import SETTINGS, flag_of, graded_benchmarks, read_settings, rows_path
from openrlhf_swap.files import read_rows
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
# Of evaluations with budgets of thought: the area under accuracy over the logarithm of the budget, and its range.
AREAS = {"area_cut": "area % (cut)", "area_vllm": "area % (vllm)"}


def main(argv: list[str]) -> None:
    """Print the tables, or the disagreements."""
    parser = Parser("openrlhf-swap eval report", __doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="folders of evaluations; the baseline first")
    parser.add_argument("--format", choices=["terminal", "markdown", "latex", "csv"], default="terminal")
    parser.add_argument("--paper", choices=["1.5B", "7B"], help="also print the paper's numbers, marked as such")
    parser.add_argument("--disagreements", action="store_true", help="list samples whose last box is not their answer")
    args = parser.parse_args(argv)
    if args.disagreements:
        for folder in args.folders:
            print("\n".join([f"{folder}:", *disagreements(folder)]))
        return
    if args.paper and args.format == "csv":
        raise ConfigError(f"--paper is {args.paper}, which has no CSV form; use --format markdown, or leave it out")
    runs = measure_evaluations(args.folders)
    for warning in settings_that_differ(args.folders):
        print(f"warning: {warning}", file=sys.stderr)
    tables = [evaluation_table(runs, args.format)]
    if args.format in ("terminal", "markdown"):
        tables += difference_tables(runs, args.format)
    if args.paper:
        tables.append(paper_table(args.paper, args.format))
    print("\n\n".join(tables))


def disagreements(folder: Path) -> list[str]:
    """Samples whose answer after the thought differs from the last boxed one anywhere, one line each."""
    return [
        f"{name} {row['id']} sample {row['sample']}: {row['answer']!r} after the thought, "
        f"{row['answer_anywhere']!r} anywhere ({'correct' if row['correct'] else 'wrong'})"
        for name in graded_benchmarks(folder)
        for row in read_rows(rows_path("grades", folder, name))
        if row["answer"] != row["answer_anywhere"]
    ]


def settings_that_differ(folders: Sequence[Path]) -> list[str]:
    """Settings that differ between evaluations, apart from those of the model and the seed: one line each."""
    runs = {folder: settings for folder in folders if (settings := read_settings(folder))}
    warnings = []
    for name in SETTINGS:
        values = {folder: run[name] for folder, run in runs.items()}
        if name not in ("model", "seed", "end_of_thought") and len(set(values.values())) > 1:
            listed = ", ".join(f"{shown(value)} in {folder}" for folder, value in values.items())
            warnings.append(f"{flag_of(name)} is {listed}: do not compare them")
    return warnings


def evaluation_table(runs: Mapping[str, Evaluation], style: str) -> str:
    """A table of evaluations, by name, for `style`: terminal, markdown, csv (all measures) or latex (the paper's)."""
    if style == "latex":
        names = _benchmarks(runs)
        groups = [*([name] for name in names), names]
        rows = {run: [_average(measures, group) or ("--", "--") for group in groups] for run, measures in runs.items()}
        return _latex(names, rows)
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
    """Header and rows of the table: one row per evaluation and benchmark, and one for the average over several.

    An evaluation that lacks a benchmark of the others has no average, which would not be comparable. `chosen` are the
    measures that it has, by column.
    """
    names = _benchmarks(runs)
    measured = [measured.values for measures in runs.values() for measured in measures.values()]
    areas = {key: title for key, title in AREAS.items() if any(key in values for values in measured)}
    columns = {**chosen, **areas}
    rows: list[list[str]] = []
    for run, measures in runs.items():
        for name in measures:
            cells = _cells(measures[name].values)
            rows.append([run, title_of(name), cells["problems"], *(cells.get(key, "") for key in columns)])
        if len(names) > 1 and (average := _average(measures, names)):
            cells = dict(zip(("accuracy", "tokens"), average, strict=True))
            rows.append([run, "Average", "", *(cells.get(key, "") for key in columns)])
    return ["evaluation", "benchmark", "problems", *columns.values()], rows


def _cells(values: Mapping[str, float]) -> dict[str, str]:
    """A benchmark's cells; shares are given in percent, an area with its budgets, outside of which it says nothing."""
    cells = {
        key: f"{value:.0f}" if key.startswith(("tokens", "budget", "problems")) else f"{100 * value:.1f}"
        for key, value in values.items()
    }
    k = f"{values['samples']:.0f}"
    cells |= {"pass@k": f"{cells[f'pass@{k}']} (k={k})", "maj@k": cells[f"maj@{k}"]}
    cells["interval"] = f"{cells['accuracy_low']}-{cells['accuracy_high']}"
    for area in cells.keys() & AREAS.keys():
        budget = area.replace("area", "budget")
        cells[area] += f" ({cells[f'{budget}_least']}-{cells[f'{budget}_most']})"
    return cells


def difference_cells(runs: Mapping[str, Evaluation]) -> tuple[list[str], list[list[str]], list[str]]:
    """Header and rows: each evaluation minus each earlier one, on the problems they share; a note where it is none."""
    rows, notes = [], []
    for (earlier, first), (later, second) in combinations(runs.items(), 2):
        for name in (name for name in second if name in first):
            if cells := _difference(first[name], second[name]):
                rows.append([f"{later} - {earlier}", title_of(name), *cells])
            else:
                pair = f"{later} and {earlier}"
                notes.append(f"no difference on {title_of(name)}: {pair} share no problem of the same text")
    return ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"], rows, notes


def difference_tables(runs: Mapping[str, Evaluation], style: str) -> list[str]:
    """The differences as a table, and the notes."""
    header, rows, notes = difference_cells(runs)
    return [*([_table(header, rows, style)] if rows else []), *notes]


def _difference(first: Measures, second: Measures) -> list[str]:
    """Cells of the shared problems and of second minus first in accuracy and tokens; [] if none are shared.

    Problems are the same if their texts are, apart from white space: those of the hub and of a local copy differ in
    their ids.
    """
    there, here = (
        measured.problems.assign(text=["".join(text.split()) for text in measured.problems["problem"]])
        for measured in (second, first)
    )
    pairs = there.merge(here.drop_duplicates("text", keep="last"), on="text", suffixes=("", "_first"))
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
    """The paper's accuracy and tokens for a model size, and their averages, marked as such; no CSV."""
    paper = pd.read_csv(PAPER_ROWS, dtype=str)
    paper = paper[paper["model"] == model].set_index("method").drop(columns="model")
    names = list(dict.fromkeys(column.rpartition("_")[0] for column in paper))
    rows = {}
    for method, cells in paper.iterrows():
        accuracy, tokens = (cells.filter(like=f"_{key}") for key in ("accuracy", "tokens"))
        average = f"{accuracy.astype(float).mean():.1f}", f"{tokens.astype(float).mean():.0f}"
        rows[f"{method} (paper)"] = [*zip(accuracy, tokens, strict=True), average]
    title = f"{model}, accuracy % / tokens as reported in the paper, and their averages; not measured here"
    if style == "latex":
        return f"% {title}\n{_latex(names, rows)}"
    lines = [[method, *(" / ".join(pair) for pair in pairs)] for method, pairs in rows.items()]
    return f"{title}\n\n{_table(['method', *map(title_of, names), 'Average'], lines, style)}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], style: str) -> str:
    """A table of text cells: Markdown, or for the terminal, where numbers are right-aligned."""
    if style == "markdown":
        return tabulate(rows, header, tablefmt="github", stralign=None, disable_numparse=True)
    alignment = ["left", "left"] + ["right"] * (len(header) - 2)
    # As a header, tabulate would make the columns wider than needed; as a row it does not.
    return tabulate([header, *rows], tablefmt="plain", colalign=alignment, disable_numparse=True)


def _latex(names: Sequence[str], rows: Mapping[str, Sequence[tuple[str, str]]]) -> str:
    """The paper's layout: accuracy and tokens per benchmark, and of their average, for each name in `rows`."""
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
