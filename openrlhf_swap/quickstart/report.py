"""The quickstart's table and figure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib
from tabulate import tabulate

from openrlhf_swap.files import Row

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

ROWS = {
    "accuracy": ("accuracy", "{:.1%}"),
    "tokens": ("tokens a response", "{:.1f}"),
    "redundant": ("redundant lines", "{:.2f}"),
    "essential": ("essential lines", "{:.2f}"),
}
HEADER = ["", "base", "trained", "change"]


def cells(summary: Mapping[str, Any]) -> list[list[str]]:
    """The table's rows: base against trained."""
    base = summary["base"]
    trained = summary["trained"]
    rows = []
    for key, (label, style) in ROWS.items():
        if key == "accuracy":
            change = f"{100 * (trained[key] - base[key]):+z.1f} pt"
        else:
            change = f"{trained[key] / base[key] - 1:+z.0%}" if base[key] else "-"
        rows.append([label, style.format(base[key]), style.format(trained[key]), change])
    return rows


def seconds(summary: Mapping[str, Any]) -> str:
    """The seconds per training step, by phase."""
    phases = summary["seconds"]
    parts = ", ".join(
        f"{name} {phases[name]:.2f}" for name in ("generate", "score", "update", "sync")
    )
    return f"seconds a training step: {phases['total']:.2f} ({parts})"


def table(summary: Mapping[str, Any]) -> str:
    """Base against trained, and the seconds per training step."""
    text = tabulate(
        cells(summary), HEADER, "plain", disable_numparse=True, colalign=("left", *("right",) * 3)
    )
    return f"\n{text}\n\n{seconds(summary)}"


def draw(metrics: list[Row], summary: Mapping[str, Any], path: Path) -> None:
    """Training curves, and the kinds of lines before and after."""
    metrics = [row for row in metrics if "swap/accuracy" in row]  # skipped steps have none
    steps = [row["step"] for row in metrics]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(12, 3.4), layout="constrained")
    left.plot(steps, [row["length/mean"] for row in metrics], label="all")
    left.plot(steps, [row.get("length/target") for row in metrics], label="target", linestyle="--")
    left.set(title="Tokens a response", xlabel="step", ylim=(0, None))
    left.legend(frameon=False)
    middle.plot(steps, [row["swap/accuracy"] for row in metrics], color="tab:green")
    middle.set(title="Accuracy of rollouts", xlabel="step", ylim=(0, 1))
    for panel in (left, middle):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    names = ["base", "trained"]
    essential = [summary[name]["essential"] for name in names]
    right.bar(names, essential, label="essential", color="tab:blue")
    redundant = [summary[name]["redundant"] for name in names]
    right.bar(names, redundant, bottom=essential, label="redundant", color="tab:orange")
    right.set(title="Lines a held-out response")
    right.legend(frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
