r"""Figures, one command each, written as PNG and PDF.

openrlhf-swap eval figures pareto outputs/eval/* --output figures/pareto
openrlhf-swap eval figures budget outputs/eval/base outputs/eval/swap --output figures/budget
openrlhf-swap eval figures gains outputs/eval/base outputs/eval/swap --output figures/gains
openrlhf-swap eval figures sweep outputs/theta --output figures/theta
openrlhf-swap eval figures dynamics outputs/run/metrics.jsonl --output figures/dynamics
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from openrlhf_swap.command import Parser
from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation.measures import Measures, measure_evaluation
from openrlhf_swap.evaluation.traces import label_of, read_scored, read_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (4.2, 3.4)  # inches, of one panel


def main(argv: list[str]) -> None:
    """Draw a figure; raises DataError for inputs that lack the data it shows."""
    parser = Parser("openrlhf-swap eval figures", __doc__)
    parser.add_argument("figure", choices=FIGURES)
    parser.add_argument("inputs", type=Path, nargs="+", help="what to draw, see above")
    parser.add_argument("--output", type=Path, required=True, help="output path without extension")
    args = parser.parse_args(argv)
    figure = FIGURES[args.figure](args.inputs)
    figure.axes[0].legend(fontsize="small")
    args.output.parent.mkdir(parents=True, exist_ok=True)
    for suffix in ("png", "pdf"):
        figure.savefig(f"{args.output}.{suffix}", dpi=150)
    print(f"{args.output}.png and .pdf")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the (tokens, accuracy) points that no other point beats in both, by increasing
    tokens.
    """
    front: list[int] = []
    for index in sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1])):
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front


def pareto(folders: Sequence[Path]) -> Figure:
    """Accuracy vs. tokens of every evaluation, one panel per benchmark, with the Pareto front."""
    figure, parts = _by_benchmark(folders, xlabel="tokens per response", ylabel="pass@1, %")
    for panel, runs in parts:
        points = []
        for folder, measured in runs.items():
            x = measured.values["tokens"]
            y, low, high = (
                100 * measured.values[name]
                for name in ("accuracy", "accuracy_low", "accuracy_high")
            )
            points.append((x, y))
            panel.errorbar(
                x,
                y,
                yerr=[[max(0, y - low)], [max(0, high - y)]],
                fmt="o",
                capsize=3,
                label=folder.name,
            )
        front = [points[i] for i in pareto_front(points)]
        panel.plot(*zip(*front, strict=True), color="0.6", zorder=0, linestyle="--")
    return figure


def accuracy_within(samples: pd.DataFrame, budgets: Sequence[int]) -> list[float]:
    """Accuracy at each token budget, where a response counts as correct only if it fits the budget."""
    return [
        float((samples["correct"] & (samples["tokens"] <= budget)).mean()) for budget in budgets
    ]


def budget(folders: Sequence[Path]) -> Figure:
    """Accuracy vs. token budget, one panel per benchmark: by truncation, and with forced answers if
    there are any.

    Forced answers come from `openrlhf-swap eval forced`.
    """
    figure, parts = _by_benchmark(
        folders, xlabel="token budget", ylabel="correct within budget, %", xscale="log"
    )
    for panel, runs in parts:
        longest = max(run.samples["tokens"].max() for run in runs.values())
        budgets = np.unique(np.geomspace(max(8, longest / 256), longest, 40).astype(int))
        for folder, run in runs.items():
            values = 100 * np.array(accuracy_within(run.samples, budgets.tolist()))
            (line,) = panel.plot(budgets, values, label=f"{folder.name}, cut off")
            if len(run.forced):
                curve, label = run.forced.sort_values("budget"), f"{folder.name}, forced"
                panel.plot(
                    curve["budget"],
                    100 * curve["accuracy"],
                    "--o",
                    color=line.get_color(),
                    label=label,
                )
    return figure


def gains(files: Sequence[Path]) -> Figure:
    """Histogram of the information gain per step in scored traces, with the share above 0.5 nats.

    Scored traces are files, or `scored.jsonl` in the folders of evaluations.
    """
    from openrlhf_swap.runs.metrics import HIGH_GAIN  # imports torch, so not at module level

    figure, (panel,) = _panels(
        {}, xlabel="information gain of a step, nats", ylabel="share of steps"
    )
    values = {file: np.concatenate([row["gains"] for row in read_scored(file)]) for file in files}
    top = max(HIGH_GAIN * 2, float(np.quantile(np.concatenate(list(values.values())), 0.99)))
    for file, steps in values.items():
        label = f"{label_of(file)}: {(steps > HIGH_GAIN).mean():.1%} above {HIGH_GAIN}"
        weights = np.full(len(steps), 1 / len(steps))
        panel.hist(
            np.clip(steps, 0, top),
            bins=40,
            range=(0, top),
            weights=weights,
            histtype="step",
            label=label,
        )
    panel.axvline(HIGH_GAIN, color="0.6", linestyle="--")
    panel.set_yscale("log")
    return figure


def sweep(folders: Sequence[Path]) -> Figure:
    """Accuracy and tokens vs. the value that a sweep varied, mean and range over seeds."""
    figure, panels = _panels(
        {"ylabel": "accuracy, %"}, {"ylabel": "tokens per response"}, xlabel="value"
    )
    for folder in folders:
        rows = []
        for file in folder.glob("*/seed_*/result.json"):
            if match := re.search(r"_([\d.]+|inf)$", file.parent.parent.name):
                rows.append(
                    {"value": float(match[1]), **json.loads(file.read_text(encoding="utf-8"))}
                )
        if not rows:
            raise DataError(
                f"{folder} holds no results of a sweep; make them with examples/studies/run_sweep.py"
            )
        by_value = pd.DataFrame(rows).groupby("value")
        for panel, key, scale in zip(panels, ("accuracy", "tokens"), (100, 1), strict=True):
            seeds = scale * by_value[key].agg(["mean", "min", "max"])
            panel.plot(seeds.index, seeds["mean"], marker="o", label=folder.name)
            panel.fill_between(seeds.index, seeds["min"], seeds["max"], alpha=0.2)
    return figure


def dynamics(files: Sequence[Path]) -> Figure:
    """Accuracy and length of the rollouts of each training step, from metrics.jsonl."""
    figure, panels = _panels(
        {"ylabel": "accuracy of rollouts, %"}, {"ylabel": "tokens per rollout"}, xlabel="step"
    )
    for file in files:
        rows = read_steps(file)
        for panel, key, scale in zip(
            panels, ("swap/accuracy", "length/mean"), (100, 1), strict=True
        ):
            panel.plot(
                [row["step"] for row in rows],
                [scale * row[key] for row in rows],
                label=file.parent.name,
            )
    return figure


FIGURES = {figure.__name__: figure for figure in (pareto, budget, gains, sweep, dynamics)}


def _by_benchmark(
    folders: Sequence[Path], **labels: str
) -> tuple[Figure, Iterator[tuple[Axes, dict[Path, Measures]]]]:
    """A figure with one panel per benchmark; and each panel, with the evaluations that have its
    benchmark.
    """
    runs = {folder: measure_evaluation(folder) for folder in folders}
    names = list(dict.fromkeys(chain.from_iterable(runs.values())))
    figure, panels = _panels(*({"title": title_of(name)} for name in names), **labels)
    shown = ({folder: run[name] for folder, run in runs.items() if name in run} for name in names)
    return figure, zip(panels, shown, strict=True)


def _panels(*labels: Mapping[str, str], **shared: str) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each set of labels, at most three per row; `shared` labels apply to
    all panels.
    """
    from matplotlib.figure import Figure  # takes a second, so not at module level

    rows, columns = -(-len(labels) // 3), min(len(labels), 3)
    figure = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    panels = [
        figure.add_subplot(rows, columns, i, **label, **shared)
        for i, label in enumerate(labels, start=1)
    ]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels
