r"""Tables of evaluations.

    python -m evaluation.report outputs/eval/base outputs/eval/swap --format markdown --paper 1.5B

Accuracy is pass@1: the mean over problems of the share of right samples, with a 95% bootstrap interval over problems.
With several evaluations, the differences to the first are given with paired-bootstrap intervals.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median

import numpy as np

from evaluation.benchmarks import BENCHMARKS, title_of
from evaluation.samples import SETTINGS, grades_path, key_of, read_rows, samples_path
from evaluation.statistics import bootstrap_interval, majority_is_right, paired_difference, pass_at_k
from openrlhf_swap.errors import DataError, SwapError

PAPER_ROWS = Path(__file__).parent / "paper_rows.csv"


@dataclass
class Measures:
    """What one benchmark's samples amount to.

    Attributes:
        problems: ids, in order.
        accuracy: (P,) share of right samples of each problem.
        tokens: (P,) mean tokens of each problem's samples.
        values: named numbers, see `measure_benchmark`.
    """

    problems: list[str]
    accuracy: np.ndarray
    tokens: np.ndarray
    values: dict[str, float] = field(default_factory=dict)


def measure(folder: Path) -> dict[str, Measures]:
    """Measures of every benchmark in an evaluation's folder.

    Raises:
        DataError: when there is no graded sample.
    """
    names = sorted(path.name.removesuffix(".grades.jsonl") for path in folder.glob("*.grades.jsonl"))
    known = list(BENCHMARKS)
    names.sort(key=lambda name: (known.index(name) if name in known else len(known), name))
    measures = {name: measure_benchmark(folder, name) for name in names}
    measures = {name: values for name, values in measures.items() if values.problems}
    if not measures:
        raise DataError(f"{folder} holds no graded samples; make them with python -m evaluation.run")
    return measures


def measure_benchmark(folder: Path, name: str) -> Measures:
    """Read samples and grades side by side, keeping numbers only."""
    grades = {
        key_of(row): (row["correct"], row["answer"], row["status"]) for row in read_rows(grades_path(folder, name))
    }
    groups: dict[str, list[tuple[bool, str | None, int, int, bool]]] = defaultdict(list)
    statuses: dict[str, int] = defaultdict(int)
    for row in read_rows(samples_path(folder, name)):
        if key_of(row) in grades:
            correct, answer, status = grades[key_of(row)]
            statuses[status] += 1
            groups[row["id"]].append((correct, answer, row["tokens"], row["thinking_tokens"], row["truncated"]))
    if not groups:
        return Measures([], np.zeros(0), np.zeros(0))
    rows = [row for group in groups.values() for row in group]
    accuracy = np.array([fmean(row[0] for row in group) for group in groups.values()])
    tokens = np.array([fmean(row[2] for row in group) for group in groups.values()])
    samples = min(len(group) for group in groups.values())
    low, high = bootstrap_interval(accuracy)

    def length(chosen: list[int]) -> float:
        return fmean(chosen) if chosen else float("nan")

    right_counts = [(sum(row[0] for row in group), len(group)) for group in groups.values()]
    values = {
        "problems": len(groups),
        "samples": samples,
        "accuracy": accuracy.mean(),
        "accuracy_low": low,
        "accuracy_high": high,
        f"pass@{samples}": fmean(pass_at_k(right, count, samples) for right, count in right_counts),
        f"maj@{samples}": fmean(
            majority_is_right([row[1] for row in group], [row[0] for row in group]) for group in groups.values()
        ),
        "tokens": tokens.mean(),
        "tokens_median": median(row[2] for row in rows),
        "tokens_correct": length([row[2] for row in rows if row[0]]),
        "tokens_wrong": length([row[2] for row in rows if not row[0]]),
        "tokens_thinking": fmean(row[3] for row in rows),
        "tokens_answer": fmean(row[2] - row[3] for row in rows),
        "truncated": fmean(row[4] for row in rows),
        "accuracy_per_1k_tokens": accuracy.mean() / (tokens.mean() / 1000),
        **{f"grader_{status}": count / len(rows) for status, count in sorted(statuses.items()) if status != "ok"},
    }
    return Measures(list(groups), accuracy, tokens, {name: float(value) for name, value in values.items()})


COLUMNS = {
    "accuracy": "pass@1 %",
    "interval": "95%",
    "tokens": "tokens",
    "tokens_median": "median",
    "tokens_correct": "right",
    "tokens_wrong": "wrong",
    "tokens_thinking": "thinking",
    "tokens_answer": "answer",
    "truncated": "cut off %",
    "accuracy_per_1k_tokens": "acc./1k",
}


def make_table(runs: dict[str, dict[str, Measures]], style: str) -> str:
    """A table of evaluations.

    Args:
        runs: measures by benchmark, by the evaluation's name.
        style: terminal, markdown, csv, or latex (in the paper's layout).
    """
    if style == "latex":
        return _latex(runs)
    if style == "csv":
        return _csv(runs)
    header = ["evaluation", "benchmark", "problems", *COLUMNS.values(), "pass@k %", "maj@k %"]
    rows = []
    for run, measures in runs.items():
        for name, measured in measures.items():
            v = measured.values
            k = int(v["samples"])
            cells = {key: f"{v[key]:.0f}" for key in COLUMNS if key.startswith("tokens")}
            cells |= {"accuracy": f"{100 * v['accuracy']:.1f}", "truncated": f"{100 * v['truncated']:.1f}"}
            cells["interval"] = f"{100 * v['accuracy_low']:.1f}-{100 * v['accuracy_high']:.1f}"
            cells["accuracy_per_1k_tokens"] = f"{100 * v['accuracy_per_1k_tokens']:.1f}"
            last = [f"{100 * v[f'pass@{k}']:.1f} (k={k})", f"{100 * v[f'maj@{k}']:.1f}"]
            rows.append([run, title_of(name), f"{v['problems']:.0f}", *(cells[key] for key in COLUMNS), *last])
    return _aligned(header, rows, style)


def paper_table(model: str) -> str:
    """Accuracy and tokens that the paper reports for a model size, marked as such."""
    with open(PAPER_ROWS, encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model]
    names = list(dict.fromkeys(key.rpartition("_")[0] for key in rows[0] if "_" in key))
    cells = [
        [f"{row['method']} (paper)", *(f"{row[f'{name}_accuracy']} / {row[f'{name}_tokens']}" for name in names)]
        for row in rows
    ]
    title = f"{model}, accuracy % / tokens as reported in the paper; not measured here"
    return title + "\n" + _aligned(["method", *(title_of(name) for name in names)], cells, "terminal")


def make_differences(runs: dict[str, dict[str, Measures]], style: str) -> str:
    """Each evaluation against the first, on the problems that both have."""
    (base_name, base), *others = runs.items()
    rows = []
    for run, measures in others:
        for name in measures.keys() & base.keys():
            first = dict(
                zip(base[name].problems, zip(base[name].accuracy, base[name].tokens, strict=True), strict=True)
            )
            second = measures[name]
            shared = [i for i, problem in enumerate(second.problems) if problem in first]
            if not shared:
                continue
            pairs = [first[second.problems[i]] for i in shared]
            accuracy = paired_difference(np.array([p[0] for p in pairs]), second.accuracy[shared])
            tokens = paired_difference(np.array([p[1] for p in pairs]), second.tokens[shared])
            rows.append(
                [
                    f"{run} - {base_name}",
                    title_of(name),
                    str(len(shared)),
                    "{:+.1f} ({:+.1f} to {:+.1f})".format(*(100 * value for value in accuracy)),
                    "{:+.0f} ({:+.0f} to {:+.0f})".format(*tokens),
                ]
            )
    header = ["difference", "benchmark", "problems", "pass@1, points (95%)", "tokens (95%)"]
    return _aligned(header, sorted(rows), style) if rows else ""


def _aligned(header: list[str], rows: list[list[str]], style: str) -> str:
    if style == "markdown":
        lines = ["| " + " | ".join(row) + " |" for row in [header, *rows]]
        lines.insert(1, "|" + "---|" * len(header))
        return "\n".join(lines)
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in [header, *rows]
    )


def _csv(runs: dict[str, dict[str, Measures]]) -> str:
    names = list(dict.fromkeys(n for ms in runs.values() for m in ms.values() for n in m.values))
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["evaluation", "benchmark", *names])
    for run, measures in runs.items():
        for name, measured in measures.items():
            writer.writerow([run, name, *(measured.values.get(n, "") for n in names)])
    return buffer.getvalue().rstrip("\n")


def _latex(runs: dict[str, dict[str, Measures]]) -> str:
    names = list(dict.fromkeys(name for measures in runs.values() for name in measures))
    titles = " & ".join(rf"\multicolumn{{2}}{{c}}{{{title_of(name)}}}" for name in [*names, "Average"])
    lines = [
        r"\begin{tabular}{l" + "rr" * (len(names) + 1) + "}",
        r"\toprule",
        rf" & {titles} \\",
        "Method" + r" & Acc. & Tokens" * (len(names) + 1) + r" \\",
        r"\midrule",
    ]
    for run, measures in runs.items():
        cells = []
        for name in names:
            v = measures[name].values if name in measures else None
            cells += [f"{100 * v['accuracy']:.1f}", f"{v['tokens']:.0f}"] if v else ["--", "--"]
        if len(measures) == len(names):
            cells.append(f"{100 * fmean(m.values['accuracy'] for m in measures.values()):.1f}")
            cells.append(f"{fmean(m.values['tokens'] for m in measures.values()):.0f}")
        else:
            cells += ["--", "--"]
        lines.append(" & ".join([run.replace("_", r"\_"), *cells]) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"])


def disagreements(folder: Path) -> list[str]:
    """Samples whose answer after the thought is not the last boxed one anywhere: one line each."""
    lines = []
    for path in sorted(folder.glob("*.grades.jsonl")):
        for row in read_rows(path):
            if row["answer"] != row["answer_anywhere"]:
                where = f"{path.name.removesuffix('.grades.jsonl')} {row['id']} sample {row['sample']}"
                verdict = "right" if row["correct"] else "wrong"
                lines.append(
                    f"{where}: {row['answer']!r} after the thought, {row['answer_anywhere']!r} anywhere ({verdict})"
                )
    return lines


def settings_that_differ(folders: Sequence[Path]) -> list[str]:
    """What evaluations were not made alike in, model and seed aside: one line each."""
    runs = {
        folder: json.loads(path.read_text("utf-8")) for folder in folders if (path := folder / "run.json").exists()
    }
    warnings = []
    for name in SETTINGS:
        values = {folder: run[name] for folder, run in runs.items()}
        if name not in ("model", "seed") and len(set(values.values())) > 1:
            listed = ", ".join(f"{value!r} in {folder}" for folder, value in values.items())
            warnings.append(f"--{name.replace('_', '-')} is {listed}: do not compare them")
    return warnings


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folders", type=Path, nargs="+", help="of evaluations; the first is what others are compared with"
    )
    parser.add_argument("--format", choices=["terminal", "markdown", "latex", "csv"], default="terminal")
    parser.add_argument("--paper", choices=["1.5B", "7B"], help="also print what the paper reports, marked as such")
    parser.add_argument(
        "--disagreements",
        action="store_true",
        help="list the samples whose answer after the thought is not the last boxed one anywhere, and stop",
    )
    args = parser.parse_args(argv)
    if args.disagreements:
        for folder in args.folders:
            print("\n".join([f"{folder}:", *disagreements(folder)]))
        return 0
    names = [folder.name for folder in args.folders]
    try:
        runs = {
            folder.name if names.count(folder.name) == 1 else str(folder): measure(folder) for folder in args.folders
        }
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for warning in settings_that_differ(args.folders):
        print(f"warning: {warning}", file=sys.stderr)
    print(make_table(runs, args.format))
    if len(runs) > 1 and args.format in ("terminal", "markdown"):
        print("\n" + make_differences(runs, args.format))
    if args.paper:
        print("\n" + paper_table(args.paper))
    return 0


if __name__ == "__main__":
    sys.exit(main())
