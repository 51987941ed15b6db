r"""Figures, one command each; every one is written as PNG and PDF.

python -m evaluation.figures pareto outputs/eval/* --output figures/pareto
python -m evaluation.figures budget outputs/eval/base outputs/eval/swap --output figures/budget
python -m evaluation.figures gains base.scored.jsonl swap.scored.jsonl --output figures/gains
python -m evaluation.figures density base.scored.jsonl --output figures/density
python -m evaluation.figures sweep outputs/theta --output figures/theta
python -m evaluation.figures dynamics outputs/run/metrics.jsonl --output figures/dynamics
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from evaluation.benchmarks import title_of
from evaluation.forced import forced_path
from evaluation.report import measure
from evaluation.samples import grades_path, key_of, read_rows, samples_path
from openrlhf_swap.errors import DataError, SwapError
from openrlhf_swap.metrics import HIGH_GAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (4.2, 3.4)  # inches, of one panel


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (tokens, accuracy) points that no other beats in both, by rising tokens."""
    best, front = -np.inf, []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if points[index][1] > best:
            best = points[index][1]
            front.append(index)
    return front


def pareto(folders: Sequence[Path]) -> Figure:
    """Accuracy against tokens of every evaluation, a panel a benchmark, with the Pareto front."""
    runs = {folder.name: measure(folder) for folder in folders}
    names = list(dict.fromkeys(name for measures in runs.values() for name in measures))
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=True):
        shown = [(run, measures[name]) for run, measures in runs.items() if name in measures]
        points = [(float(m.tokens.mean()), 100 * float(m.accuracy.mean())) for _, m in shown]
        for (run, measured), (x, y) in zip(shown, points, strict=True):
            low, high = (100 * measured.values[f"accuracy_{end}"] for end in ("low", "high"))
            panel.errorbar(x, y, yerr=[[max(0, y - low)], [max(0, high - y)]], fmt="o", capsize=3, label=run)
        front = [points[i] for i in pareto_front(points)]
        panel.plot(*zip(*front, strict=True), color="0.6", zorder=0, linestyle="--")
        panel.set(title=title_of(name), xlabel="tokens a response", ylabel="pass@1, %")
    panels[0].legend(fontsize="small")
    return figure


def accuracy_within(folder: Path, name: str, budgets: Sequence[int]) -> list[float]:
    """Accuracy when every response is cut off at a budget: right only with no more tokens than that."""
    correct = {key_of(row): row["correct"] for row in read_rows(grades_path(folder, name))}
    rows = [
        (row["tokens"], correct[key_of(row)])
        for row in read_rows(samples_path(folder, name))
        if key_of(row) in correct
    ]
    return [fmean(right and tokens <= budget for tokens, right in rows) for budget in budgets]


def budget(folders: Sequence[Path]) -> Figure:
    """Accuracy against the token budget, a panel a benchmark: by truncation, and with forced answers where there are.

    Forced answers come from `python -m evaluation.forced`.
    """
    runs = {folder: measure(folder) for folder in folders}
    names = list(dict.fromkeys(name for measures in runs.values() for name in measures))
    figure, panels = _panels(len(names))
    for panel, name in zip(panels, names, strict=True):
        longest = max(_longest(folder, name) for folder, measures in runs.items() if name in measures)
        budgets = np.unique(np.geomspace(max(8, longest / 256), longest, 40).astype(int))
        for folder, measures in runs.items():
            if name in measures:
                values = accuracy_within(folder, name, [int(b) for b in budgets])
                (line,) = panel.plot(budgets, 100 * np.array(values), label=f"{folder.name}, cut off")
                forced = list(read_rows(forced_path(folder, name)))
                if forced:
                    panel.plot(
                        [row["budget"] for row in forced],
                        [100 * row["accuracy"] for row in forced],
                        color=line.get_color(),
                        linestyle="--",
                        marker="o",
                        label=f"{folder.name}, forced",
                    )
        panel.set(title=title_of(name), xlabel="token budget", ylabel="right within it, %", xscale="log")
    panels[0].legend(fontsize="small")
    return figure


def _longest(folder: Path, name: str) -> int:
    return max(row["tokens"] for row in read_rows(samples_path(folder, name)))


def gains(files: Sequence[Path]) -> Figure:
    """Histogram of the steps' information gain in scored traces, with the share above 0.5 nats."""
    figure, (panel,) = _panels(1)
    values = {file: np.concatenate([row["gains"] for row in _scored(file)]) for file in files}
    top = max(HIGH_GAIN * 2, float(np.quantile(np.concatenate(list(values.values())), 0.99)))
    for file, steps in values.items():
        share = float((steps > HIGH_GAIN).mean())
        label = f"{_stem(file)}: {share:.1%} above {HIGH_GAIN}"
        weights = np.full(len(steps), 1 / len(steps))
        panel.hist(np.clip(steps, 0, top), bins=40, range=(0, top), weights=weights, histtype="step", label=label)
    panel.axvline(HIGH_GAIN, color="0.6", linestyle="--")
    panel.set(xlabel="information gain of a step, nats", ylabel="share of steps", yscale="log")
    panel.legend(fontsize="small")
    return figure


def density(files: Sequence[Path]) -> Figure:
    """Share of steps above 0.5 nats against the response's length, in ten groups of equal size."""
    figure, (panel,) = _panels(1)
    for file in files:
        rows = [row for row in _scored(file) if row["gains"]]
        lengths = np.array([row["step_ends"][-1] + 1 for row in rows])
        shares = np.array([np.mean(np.array(row["gains"]) > HIGH_GAIN) for row in rows])
        groups = np.array_split(np.argsort(lengths), min(10, len(rows)))
        points = [(lengths[group].mean(), 100 * shares[group].mean()) for group in groups]
        panel.plot(*zip(*points, strict=True), marker="o", label=_stem(file))
    panel.set(xlabel="reasoning tokens", ylabel=f"steps above {HIGH_GAIN} nats, %", xscale="log")
    panel.legend(fontsize="small")
    return figure


def sweep(folders: Sequence[Path]) -> Figure:
    """Accuracy and tokens against the value that a sweep varied, mean and range over seeds."""
    figure, panels = _panels(2)
    for folder in folders:
        results: dict[float, list[dict[str, float]]] = {}
        for file in folder.glob("*/seed_*/result.json"):
            match = re.search(r"_([\d.]+|inf)$", file.parent.parent.name)
            if match:
                results.setdefault(float(match[1]), []).append(json.loads(file.read_text(encoding="utf-8")))
        if not results:
            raise DataError(f"{folder} holds no results of a sweep; make them with python -m openrlhf_swap.sweep")
        values = sorted(results)
        for panel, key, scale in ((panels[0], "accuracy", 100), (panels[1], "tokens", 1)):
            columns = [[scale * row[key] for row in results[value]] for value in values]
            means = [fmean(column) for column in columns]
            panel.plot(values, means, marker="o", label=folder.name)
            panel.fill_between(values, [min(c) for c in columns], [max(c) for c in columns], alpha=0.2)
    panels[0].set(xlabel="value", ylabel="accuracy, %")
    panels[1].set(xlabel="value", ylabel="tokens a response")
    panels[0].legend(fontsize="small")
    return figure


def dynamics(files: Sequence[Path]) -> Figure:
    """Accuracy and length of the rollouts over the training, from metrics.jsonl."""
    figure, panels = _panels(2)
    for file in files:
        # A resumed run does steps again, the last time counts; a step whose scores were not finite measured nothing.
        by_step = {row["step"]: row for row in read_rows(file) if "swap/accuracy" in row}
        rows = [by_step[step] for step in sorted(by_step)]
        if not rows:
            raise DataError(f"{file} holds no training steps; it should be a run's metrics.jsonl")
        for panel, key, scale in ((panels[0], "swap/accuracy", 100), (panels[1], "swap/response_length", 1)):
            panel.plot([row["step"] for row in rows], [scale * row[key] for row in rows], label=file.parent.name)
    panels[0].set(xlabel="step", ylabel="accuracy of rollouts, %")
    panels[1].set(xlabel="step", ylabel="tokens a rollout")
    panels[0].legend(fontsize="small")
    return figure


FIGURES: dict[str, Callable[[Sequence[Path]], Any]] = {
    "pareto": pareto,
    "budget": budget,
    "gains": gains,
    "density": density,
    "sweep": sweep,
    "dynamics": dynamics,
}


def _scored(file: Path) -> list[dict[str, Any]]:
    rows = [row for row in read_rows(file) if row.get("gains")]
    if not rows:
        raise DataError(f"{file} holds no scored traces; make them with python -m openrlhf_swap.score")
    return rows


def _stem(file: Path) -> str:
    return file.name.partition(".")[0]


def _panels(count: int) -> tuple[Figure, list[Axes]]:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    columns = min(count, 3)
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(SIZE[0] * columns, SIZE[1] * rows), squeeze=False, layout="constrained"
    )
    panels = list(axes.flat)
    for panel in panels[count:]:
        panel.remove()
    for panel in panels[:count]:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels[:count]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0, or 2 after a one-line error."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.figures", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("inputs", type=Path, nargs="+", help="what the figure is made of, see above")
    parser.add_argument("--output", type=Path, required=True, help="path without its ending")
    args = parser.parse_args(argv)
    try:
        figure = FIGURES[args.figure](args.inputs)
    except SwapError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for ending in ("png", "pdf"):
        figure.savefig(f"{args.output}.{ending}", dpi=150)
    print(f"{args.output}.png and .pdf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
