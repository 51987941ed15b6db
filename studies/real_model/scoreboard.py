r"""One table of all arms of `studies.real_model.trainings`, by one grader, and the curves.

    python -m studies.real_model.scoreboard --output outputs/real_model --results results
    python -m studies.real_model.scoreboard --results results        # again, from the kept rows

It reads the kept samples of the base and of every policy, those of collapsed runs too, and writes
into RESULTS:

    runs.csv.gz        a row a run: steps, start, commit, seconds of the training with its failed
                       starts, fault, the policy's name and SHA-256, the graders' SHA-256
    responses.csv.gz   a row a response: correct, tokens, truncated
    steps.csv.gz       a row a training step: the rollouts' accuracy and mean length
    scoreboard.md      the table
    curves.svg         accuracy and tokens by step

A problem's value is the mean over its samples. Intervals are 95% percentile bootstraps over
problems, so they say nothing about another seed of the training. Differences are paired: they
compare the same problems. GRPO is the mean over its seeds there. The p-values below a table are of
exact sign tests over the problems whose accuracy differs, each arm as a whole, with Holm's
correction for all comparisons of the table.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.evaluation.measures import bootstrap_interval, paired_difference
from openrlhf_swap.evaluation.samples import (
    GRADES,
    graded_benchmarks,
    read_settings,
    recorded_model,
)
from openrlhf_swap.evaluation.traces import read_steps
from openrlhf_swap.files import Row, write_text
from studies.comparison.paired import holm
from studies.pictures import save_svg
from studies.real_model.settings import BASE, Run
from studies.real_model.trainings import (
    TRAIN,
    Ended,
    evaluation_folder,
    read_progress,
    run_folder,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "python -m studies.real_model.scoreboard"
GRPO = "grpo"
HEADER = (
    "arm",
    "seed",
    "accuracy, %",
    "tokens",
    "of correct",
    "of wrong",
    "cut off, %",
    "less base: points",
    "tokens",
    "less GRPO: points",
    "tokens",
    "minutes",
)


@dataclass(frozen=True)
class Rows:
    """What is kept of a study.

    Attributes:
        runs: a row a run; `run_row` has its columns.
        responses: a row a response: run, benchmark, problem, sample, correct, tokens, truncated.
        steps: a row a training step: run, step, accuracy (a share), tokens.
    """

    runs: pd.DataFrame
    responses: pd.DataFrame
    steps: pd.DataFrame

    def write(self, folder: Path) -> None:
        """Write each table into a file; equal tables become equal files."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in vars(self).items():
            same_bytes = {"method": "gzip", "mtime": 0}
            table.to_csv(kept_file(folder, name), index=False, compression=same_bytes)


@dataclass(frozen=True)
class Entry:
    """A row of the table: a run, or all runs of an arm.

    Attributes:
        seed: the training's, empty for the base, "all" for all runs.
        runs: the names of the runs.
        seconds: of a training, the mean over the runs.
    """

    arm: str
    seed: str
    runs: Sequence[str]
    seconds: float


def kept_file(folder: Path, name: str) -> Path:
    """The file of one of the tables of `Rows`."""
    return folder / f"{name}.csv.gz"


def read_kept(folder: Path) -> Rows:
    """The rows that an earlier call has written; ConfigError if one of the files is missing."""
    tables = {}
    for name in Rows.__dataclass_fields__:
        file = kept_file(folder, name)
        if not file.exists():
            raise ConfigError(f"--results is {folder}, which lacks {file.name}; give --output too")
        tables[name] = pd.read_csv(file, dtype={"seed": "Int64"})
    return Rows(**tables)


def collect(output: Path) -> Rows:
    """Read the samples and metrics of all runs below the folder of a study.

    Raises DataError if there are none, or if two evaluations were graded by different graders.
    """
    ended = read_progress(output / "progress.jsonl")
    known = dict.fromkeys(each.run for each in ended)
    runs = []
    responses = []
    steps = []
    for run in sorted(known, key=lambda run: run.arm != BASE):
        curve = step_rows(run, run_folder(output, run) / "metrics.jsonl")
        samples = response_rows(run, evaluation_folder(output, run))
        runs.append(run_row(run, ended, len(curve), evaluation_folder(output, run)))
        responses += samples
        steps += curve
    if not responses:
        raise DataError(f"--output is {output}, which holds no samples; run the trainings first")
    check_graders(runs)
    about = pd.DataFrame(runs).astype({"seed": "Int64"})
    curves = pd.DataFrame(steps, columns=["run", "step", "accuracy", "tokens"])
    return Rows(about, pd.DataFrame(responses), curves)


def step_rows(run: Run, metrics: Path) -> list[Row]:
    """A row for each step of a training; none if there are no metrics."""
    if not metrics.exists():
        return []
    rows = []
    for row in read_steps(metrics, ["swap/accuracy", "length/mean"]):
        curves = {"accuracy": row["swap/accuracy"], "tokens": row["length/mean"]}
        rows.append({"run": run.name, "step": row["step"], **curves})
    return rows


def response_rows(run: Run, folder: Path) -> list[Row]:
    """A row for each graded sample in an evaluation's folder; none if there is no evaluation."""
    if not is_evaluated(folder):
        return []
    rows = []
    for files in graded_benchmarks(folder):
        for sample, grade in files.graded():
            row = {"run": run.name, "benchmark": files.benchmark, "problem": sample["id"]}
            row |= {"sample": sample["sample"], "correct": grade["correct"]}
            row |= {"tokens": sample["tokens"], "truncated": sample["truncated"]}
            rows.append(row)
    return rows


def is_evaluated(folder: Path) -> bool:
    """Whether the folder holds graded samples."""
    return any(folder.glob(f"*{GRADES}"))


def run_row(run: Run, ended: Sequence[Ended], steps: int, evaluation: Path) -> Row:
    """What is kept of a run beside its responses and steps."""
    own = [each for each in ended if each.run == run]
    trainings = [each for each in own if each.stage == TRAIN and each.seconds]
    first = trainings[0] if trainings else own[0]
    last = own[-1]
    row: Row = {"run": run.name, "arm": run.arm, "seed": run.seed, "steps": steps}
    row |= {"started": first.started, "commit": first.commit}
    row["seconds"] = sum(each.seconds for each in trainings)
    row["fault"] = f"{last.stage} {last.fault}" if last.fault else None
    row |= {"model": None, "model_sha256": None, "graders": None}
    if is_evaluated(evaluation):
        settings = read_settings(evaluation)
        model = recorded_model(settings)
        graders = {grader["sha256"] for grader in settings["graders"].values()}
        row |= {"model": Path(model["name"]).name, "model_sha256": model.get("sha256")}
        row["graders"] = " ".join(sorted(graders))
    return row


def check_graders(runs: Sequence[Row]) -> None:
    """Raise DataError if two of the runs were graded by different graders."""
    first: dict[str, str] = {}
    for row in runs:
        if row["graders"]:
            first.setdefault(row["graders"], row["run"])
    if len(first) > 1:
        raise DataError(
            f"{' and '.join(first.values())} were graded by different graders; repeat the command "
            "in the run.json of each evaluation, which grades the kept samples again"
        )


def entries_of(runs: pd.DataFrame) -> list[Entry]:
    """Each run, and behind its last one an arm of several runs as a whole."""
    entries = []
    for arm, own in runs.groupby("arm", sort=False):
        for row in own.itertuples():
            seed = "" if pd.isna(row.seed) else str(row.seed)
            entries.append(Entry(str(arm), seed, [row.run], row.seconds))
        if len(own) > 1:
            entries.append(Entry(str(arm), "all", list(own["run"]), own["seconds"].mean()))
    return entries


def table_of(rows: Rows) -> str:
    """The scoreboard in Markdown: a table for each benchmark, and the runs that had a fault."""
    entries = entries_of(rows.runs)
    trained_by_grpo = list(rows.runs.loc[rows.runs["arm"] == GRPO, "run"])
    parts = []
    for benchmark, responses in rows.responses.groupby("benchmark", sort=False):
        base = by_problem(responses, [BASE])
        grpo = by_problem(responses, trained_by_grpo)
        lines = [line_of(entry, responses, base, grpo) for entry in entries]
        table = tabulate(lines, HEADER, tablefmt="pipe", disable_numparse=True)
        count = responses["problem"].nunique()
        parts.append(f"{title_of(str(benchmark))}, {count} problems:\n\n{table}\n")
        parts.append(tests_of(entries, responses, base, grpo))
    faulty = rows.runs[rows.runs["fault"].notna()]
    for row in faulty.itertuples():
        parts.append(f"{row.run}, {row.steps} steps: {row.fault}\n")
    return "\n".join(parts)


def tests_of(
    entries: Sequence[Entry], responses: pd.DataFrame, base: pd.DataFrame, grpo: pd.DataFrame
) -> str:
    """The corrected p-values of all differences in accuracy, to the base and to GRPO, in a line."""
    arms = {entry.arm: entry for entry in entries}  # the last entry is the arm as a whole
    values = {}
    for arm, entry in arms.items():
        problems = by_problem(responses, entry.runs)
        if arm != BASE:
            values[f"{arm} less {BASE}"] = sign_test(problems["correct"], base["correct"])
        if arm not in (BASE, GRPO):
            values[f"{arm} less {GRPO}"] = sign_test(problems["correct"], grpo["correct"])
    corrected = holm({name: value for name, value in values.items() if value is not None})
    found = ", ".join(f"{name} {value:.3f}" for name, value in corrected.items())
    return f"p of the differences in accuracy, corrected: {found or 'none'}\n"


def sign_test(after: pd.Series, before: pd.Series) -> float | None:
    """The two-sided p of an exact sign test over problems; None if there are no common ones."""
    differences = (after - before).dropna()
    if differences.empty:
        return None
    more = int((differences > 0).sum())
    less = int((differences < 0).sum())
    tail = sum(math.comb(more + less, count) for count in range(min(more, less) + 1))
    return float(min(1.0, 2 * tail / 2 ** (more + less)))


def line_of(
    entry: Entry, responses: pd.DataFrame, base: pd.DataFrame, grpo: pd.DataFrame
) -> list[str]:
    """The cells of a row of the table; those of a run without samples are empty."""
    own = responses[responses["run"].isin(entry.runs)]
    minutes = f"{entry.seconds / 60:.0f}" if entry.seconds else ""
    if own.empty:
        return [entry.arm, entry.seed, *[""] * (len(HEADER) - 3), minutes]
    problems = by_problem(responses, entry.runs)
    low, high = bootstrap_interval(problems["correct"].to_numpy())
    accuracy = problems["correct"].mean()
    return [
        entry.arm,
        entry.seed,
        f"{100 * accuracy:.1f} ({100 * low:.1f} to {100 * high:.1f})",
        f"{problems['tokens'].mean():.0f}",
        mean_cell(own.loc[own["correct"], "tokens"]),
        mean_cell(own.loc[~own["correct"], "tokens"]),
        f"{100 * own['truncated'].mean():.1f}",
        *differences(problems, base if entry.arm != BASE else None),
        *differences(problems, grpo if entry.arm != GRPO else None),
        minutes,
    ]


def by_problem(responses: pd.DataFrame, runs: Sequence[str]) -> pd.DataFrame:
    """The mean of `correct` and `tokens` over the samples of each problem, by these runs."""
    own = responses[responses["run"].isin(runs)]
    return own.groupby("problem", sort=False)[["correct", "tokens"]].mean()


def mean_cell(tokens: pd.Series) -> str:
    """The mean number of tokens; nothing if there are no responses."""
    return f"{tokens.mean():.0f}" if len(tokens) else ""


def differences(problems: pd.DataFrame, other: pd.DataFrame | None) -> list[str]:
    """Two cells: the difference to another policy in points and in tokens, with intervals.

    Both are empty for no other policy, or for one that has answered none of these problems.
    """
    if other is None:
        return ["", ""]
    common = problems.index.intersection(other.index)
    if common.empty:
        return ["", ""]
    cells = []
    for column, factor, digits in (("correct", 100, 1), ("tokens", 1, 0)):
        before = factor * other.loc[common, column].to_numpy(float)
        after = factor * problems.loc[common, column].to_numpy(float)
        mean, low, high = paired_difference(before, after)
        cells.append(f"{mean:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})")
    return cells


def curves_of(rows: Rows) -> Figure:
    """Accuracy and mean length of the rollouts by training step, a line a run."""
    from matplotlib.figure import Figure  # takes a second, so not at module level

    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    accuracy, tokens = figure.subplots(1, 2)
    for run, steps in rows.steps.groupby("run", sort=False):
        accuracy.plot(steps["step"], 100 * steps["accuracy"], label=run)
        tokens.plot(steps["step"], steps["tokens"], label=run)
    accuracy.set(xlabel="step", ylabel="accuracy of rollouts, %")
    tokens.set(xlabel="step", ylabel="tokens per rollout")
    for panel in (accuracy, tokens):
        panel.spines[["top", "right"]].set_visible(False)
    if len(rows.steps):
        accuracy.legend(fontsize="small")
    return figure


def main(argv: list[str]) -> None:
    parser = Parser(COMMAND, __doc__)
    text = "folder of the whole study; without it the rows are those of RESULTS"
    parser.add_argument("--output", type=Path, help=text)
    text = "folder for the kept rows, the table and the curves"
    parser.add_argument("--results", type=Path, required=True, help=text)
    args = parser.parse_args(argv)
    if args.output:
        rows = collect(args.output)
        rows.write(args.results)
    else:
        rows = read_kept(args.results)
    table = table_of(rows)
    write_text(args.results / "scoreboard.md", table)
    save_svg(curves_of(rows), args.results / "curves.svg")
    print(table)


if __name__ == "__main__":
    sys.exit(run_command(main))
