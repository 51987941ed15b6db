r"""Figures, one command each, written as PNG and PDF.

openrlhf-swap eval figures pareto outputs/eval/* --output figures/pareto
openrlhf-swap eval figures budget outputs/eval/base outputs/eval/swap --output figures/budget
openrlhf-swap eval figures thoughts outputs/eval/{base,swap}/budget_* --output figures/thoughts
openrlhf-swap eval figures gains outputs/eval/base outputs/eval/swap --output figures/gains
openrlhf-swap eval figures dynamics outputs/run/metrics.jsonl --output figures/dynamics
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from openrlhf_swap.command import Parser
from openrlhf_swap.data.benchmarks import title_of
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation.measures import Measures, measure_evaluation
from openrlhf_swap.evaluation.samples import no_verdicts, thought_budget
from openrlhf_swap.evaluation.traces import label_of, read_scored, read_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SIZE = (4.2, 3.4)  # inches, of one panel
PANELS_IN_A_ROW = 3  # panels in a row, at most
POINTS = 40  # of a curve over budgets


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
    """Indices of the (tokens, accuracy) points that no other point beats in both.

    They are sorted by tokens.
    """
    front: list[int] = []
    best = -np.inf

    def shortest_first(index: int) -> tuple[float, float]:
        tokens, accuracy = points[index]
        return tokens, -accuracy

    for index in sorted(range(len(points)), key=shortest_first):
        accuracy = points[index][1]
        if accuracy > best:
            front.append(index)
            best = accuracy
    return front


def pareto(folders: Sequence[Path]) -> Figure:
    """Accuracy vs. tokens of every evaluation, one panel per benchmark, with the Pareto front."""
    figure, parts = _by_benchmark(folders, xlabel="tokens per response", ylabel="pass@1, %")
    for panel, runs in parts:
        points = []
        for folder, measured in runs.items():
            values = measured.values
            x = values["tokens"]
            y = 100 * values["accuracy"]
            below = max(0, y - 100 * values["accuracy_low"])
            above = max(0, 100 * values["accuracy_high"] - y)
            panel.errorbar(x, y, [[below], [above]], fmt="o", capsize=3, label=folder.name)
            points.append((x, y))
        front = [points[i] for i in pareto_front(points)]
        panel.plot(*zip(*front, strict=True), color="0.6", zorder=0, linestyle="--")
    return figure


def accuracy_within(samples: pd.DataFrame, budgets: Sequence[int]) -> list[float]:
    """Accuracy at each token budget; a response counts as correct only if it fits the budget."""
    tokens = samples["tokens"][samples["correct"]]
    return [float((tokens <= budget).sum()) / len(samples) for budget in budgets]


def budget(folders: Sequence[Path]) -> Figure:
    """Accuracy vs. token budget, one panel per benchmark: longer responses count as wrong."""
    labels = {"xlabel": "token budget", "ylabel": "correct within budget, %", "xscale": "log"}
    figure, parts = _by_benchmark(folders, **labels)
    for panel, runs in parts:
        longest = max(run.samples["tokens"].max() for run in runs.values())
        shortest = max(8, longest / 256)
        budgets = np.unique(np.geomspace(shortest, longest, POINTS).astype(int))
        for folder, run in runs.items():
            values = 100 * np.array(accuracy_within(run.samples, budgets.tolist()))
            panel.plot(budgets, values, label=folder.name)
    return figure


def thoughts(folders: Sequence[Path]) -> Figure:
    """Accuracy vs. budget of the thought: one panel per benchmark, and one curve per model.

    The evaluations are those of `eval run --thought-budgets`; a model has the name of the folder
    in which they stand. Raises DataError for an evaluation without a budget.
    """
    labels = {"xlabel": "budget of the thought, tokens", "ylabel": "pass@1, %", "xscale": "log"}
    figure, parts = _by_benchmark(folders, **labels)
    for panel, runs in parts:
        curves: dict[str, dict[int, float]] = {}
        for folder, run in runs.items():
            budget = thought_budget(folder)
            if budget is None:
                raise DataError(
                    f"{folder} has no budget of the thought; name folders that openrlhf-swap eval "
                    "run --thought-budgets has written"
                )
            curve = curves.setdefault(folder.absolute().parent.name, {})
            curve[budget] = 100 * run.values["accuracy"]
        for name, curve in curves.items():
            budgets = sorted(curve)
            accuracies = [curve[budget] for budget in budgets]
            panel.plot(budgets, accuracies, marker="o", label=name)
        all_budgets = sorted(set(chain.from_iterable(curves.values())))
        panel.set_xticks(all_budgets, [str(budget) for budget in all_budgets])
        panel.minorticks_off()
    return figure


def gains(files: Sequence[Path]) -> Figure:
    """Histogram of the information gain per step in scored traces, with the share above 0.5 nats.

    Scored traces are files, or `scored.jsonl` in the folders of evaluations.
    """
    from openrlhf_swap.runs.metrics import HIGH_GAIN  # imports torch, so not at module level

    labels = {"xlabel": "information gain of a step, nats", "ylabel": "share of steps"}
    figure, (panel,) = _panels([labels])
    values = {}
    for file in files:
        values[file] = np.concatenate([row["gains"] for row in read_scored(file)])
    everything = np.concatenate(list(values.values()))
    top = max(HIGH_GAIN * 2, float(np.quantile(everything, 0.99)))
    for file, steps in values.items():
        panel.hist(
            np.clip(steps, 0, top),
            bins=40,
            range=(0, top),
            weights=np.full(len(steps), 1 / len(steps)),
            histtype="step",
            label=f"{label_of(file)}: {(steps > HIGH_GAIN).mean():.1%} above {HIGH_GAIN}",
        )
    panel.axvline(HIGH_GAIN, color="0.6", linestyle="--")
    panel.set_yscale("log")
    return figure


def dynamics(files: Sequence[Path]) -> Figure:
    """Accuracy and length of the rollouts of each training step, from metrics.jsonl."""
    names = ("accuracy of rollouts, %", "tokens per rollout")
    figure, (accuracy, tokens) = _panels([{"xlabel": "step", "ylabel": name} for name in names])
    for file in files:
        rows = pd.DataFrame(read_steps(file, ["swap/accuracy", "length/mean"]))
        name = file.parent.name
        accuracy.plot(rows["step"], 100 * rows["swap/accuracy"], label=name)
        tokens.plot(rows["step"], rows["length/mean"], label=name)
    return figure


FIGURES = {figure.__name__: figure for figure in (pareto, budget, thoughts, gains, dynamics)}


def _by_benchmark(
    folders: Sequence[Path], **labels: str
) -> tuple[Figure, list[tuple[Axes, dict[Path, Measures]]]]:
    """A figure with one panel per benchmark.

    The second value has each panel with the evaluations that have its benchmark. Raises DataError
    for an evaluation of which nothing was judged.
    """
    runs = {folder: measure_evaluation(folder) for folder in folders}
    for folder, run in runs.items():
        if any(isnan(measured.values["accuracy"]) for measured in run.values()):
            raise no_verdicts(folder)
    names = list(dict.fromkeys(chain.from_iterable(runs.values())))
    figure, panels = _panels([{"title": title_of(name), **labels} for name in names])
    parts = []
    for name, panel in zip(names, panels, strict=True):
        shown = {folder: run[name] for folder, run in runs.items() if name in run}
        parts.append((panel, shown))
    return figure, parts


def _panels(labels: Sequence[dict[str, str]]) -> tuple[Figure, list[Axes]]:
    """A figure with a panel for each set of labels."""
    from matplotlib.figure import Figure  # takes a second, so not at module level

    columns = min(len(labels), PANELS_IN_A_ROW)
    rows = -(-len(labels) // PANELS_IN_A_ROW)
    width, height = SIZE
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    panels = []
    for number, label in enumerate(labels, start=1):
        panel = figure.add_subplot(rows, columns, number, **label)
        panel.spines[["top", "right"]].set_visible(False)
        panels.append(panel)
    return figure, panels
