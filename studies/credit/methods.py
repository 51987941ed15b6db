r"""What does each method do to two small policies? A table and a front of runs of `loop_runs.py`.

    python -m studies.credit.methods --base --runs outputs/methods/runs.jsonl
    python -m studies.credit.methods --stack outputs/methods_stack
    python -m studies.credit.methods --picture studies/records/pictures/methods.svg

`--runs` adds the arms `objective.NAME` and `grpo_limitN` to results/methods.csv, `--stack` those
that `stack_runs.py` trained, and `--base` the policies before any training, evaluated as the runs
are. What is printed follows from that file, and from the runs of `credit.py` that are named below:
means over the seeds, in parentheses the least and the most.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from openrlhf_swap.evaluation.figures import pareto_front
from studies.credit.plain_loop import loop_of, train
from studies.credit.who_pays import KEPT, RESULTS, SETTINGS, kept_runs, stack_runs
from studies.pictures import save_svg

METHODS = RESULTS.with_name("methods.csv")
WORLDS = ("words", "columns")
SEEDS = (301, 302, 303)
BASE = "base"
# Arm, gamma and theta of a run of credit.csv -> what the table calls it.
NAMED = {
    ("steps.uniform", 1.0, 0.3): "uniform_penalty",
    ("steps.uniform", 0.0, 2.0): "own_bill",
    ("reward.need.4.1", 0.5, 1.0): "needed",
}
FLOOR = 60  # percent, the lowest accuracy that the picture tells apart
MARKERS = "osD^v*P"
# Measure -> how it is printed, and what it is multiplied with.
MEASURES = {"accuracy": ("{:.1f}", 100), "tokens": ("{:.1f}", 1), "redundant": ("{:.2f}", 1)}


def base_runs() -> pd.DataFrame:
    """What the untrained policies do with the held-out problems, for each seed of the sampling."""
    rows: list[dict[str, Any]] = []
    for world in WORLDS:
        for seed in SEEDS:
            (held_out,) = train(loop_of(world, "grpo", {}), "grpo", seed, steps=0, rate=0.0)
            settings = [world, BASE, 1.0, 0.0, seed, 0, 0.0]
            rows.append({**dict(zip(SETTINGS, settings, strict=True)), **held_out})
    return pd.DataFrame(rows).reindex(columns=KEPT)


def method_of(arm: str) -> str:
    """What the table calls an arm of the kept runs; the limits of the worlds have one name."""
    if arm.startswith("grpo_limit"):
        return "grpo, limit"
    where, _, name = arm.rpartition("objective.")
    return f"{name} (stack)" if where else name


def all_runs() -> pd.DataFrame:
    """The kept runs and those of credit.csv, with a column `method`."""
    others = pd.read_csv(RESULTS)
    names = others[["arm", "gamma", "theta"]].apply(lambda row: NAMED.get(tuple(row)), axis=1)
    others = others.assign(method=names).dropna(subset="method")
    own = pd.read_csv(METHODS)
    own = own.assign(method=own.arm.map(method_of))
    runs = pd.concat([own, others])
    return runs[runs.world.isin(WORLDS) & runs.seed.isin(SEEDS)]


def means_table(runs: pd.DataFrame) -> str:
    """A row a method, sorted by the mean of its accuracies in the worlds."""
    by_world = runs.groupby(["method", "world"])[list(MEASURES)].agg(["mean", "min", "max"])
    accuracy = by_world["accuracy", "mean"].unstack()[list(WORLDS)].mean(axis=1)
    rows = []
    for method, mean in accuracy.sort_values(ascending=False).items():
        row = {"method": f"`{method}`", "mean": f"{100 * mean:.1f}"}
        for world in WORLDS:
            for name, (form, scale) in MEASURES.items():
                found = scale * by_world.loc[(method, world), name]
                middle, least, most = map(form.format, found)
                row[f"{world}: {name}"] = f"{middle} ({least}-{most})"
        rows.append(row)
    return str(pd.DataFrame(rows).to_markdown(index=False, disable_numparse=True))


def draw(runs: pd.DataFrame, path: Path) -> None:
    """Accuracy above tokens, a panel a world, with the front; a method below FLOOR lies on it."""
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(WORLDS), figsize=(11, 5), layout="constrained")
    means = runs.groupby(["world", "method"])[["tokens", "accuracy"]].mean()
    for panel, world in zip(panels, WORLDS, strict=True):
        draw_world(panel, means.loc[world])
        panel.set_title(world)
    panels[0].set_ylabel("accuracy, %")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    save_svg(figure, path)


def draw_world(panel: Axes, means: pd.DataFrame) -> None:
    """The methods of a world, by the columns tokens and accuracy."""
    points = list(zip(means.tokens, (100 * means.accuracy).clip(lower=FLOOR), strict=True))
    front = [points[i] for i in pareto_front(points)]
    panel.step(*zip(*front, strict=True), where="post", color="0.7", zorder=1)
    for number, (method, (tokens, accuracy)) in enumerate(zip(means.index, points, strict=True)):
        marker = MARKERS[number % len(MARKERS)]
        color = f"C{number % 10}"
        panel.scatter(tokens, accuracy, 40, color, marker=marker, label=method)
    panel.set_ylim(bottom=FLOOR - 1)
    panel.set_xlabel("tokens a response")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="runs.jsonl of loop_runs.py, to be kept")
    parser.add_argument("--stack", type=Path, help="the folder of stack_runs.py, to be kept")
    parser.add_argument("--base", action="store_true", help="evaluate the untrained policies, too")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="leave all others out")
    parser.add_argument("--picture", type=Path, help="draw the front into this file")
    args = parser.parse_args()
    if args.base:
        kept_runs(METHODS, base_runs())
    if args.runs:
        kept_runs(METHODS, pd.read_json(args.runs, lines=True, precise_float=True)[KEPT])
    if args.stack:
        kept_runs(METHODS, stack_runs(args.stack, "objective.*"))
    runs = all_runs()
    runs = runs[runs.seed.isin(args.seeds)]
    print(means_table(runs))
    if args.picture:
        draw(runs, args.picture)


if __name__ == "__main__":
    main()
