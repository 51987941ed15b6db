r"""Collect the runs of `plain_loop.py` into one CSV, and print means and paired tests.

    python -m studies.credit.loop_results --runs outputs/loop \
        --keep studies/records/results/loop.csv.gz
    python -m studies.credit.loop_results --results studies/records/results/loop.csv.gz \
        --world columns \
        --seeds 101 102 103 --pairs weights.mono0.25sd/steps.uniform@1 weights.oracle/weights.anti@1
    python -m studies.credit.loop_results --results studies/records/results/loop.csv.gz \
        --seeds 1 2 3 --map
    python -m studies.credit.loop_results --results studies/records/results/loop.csv.gz \
        --world columns \
        --stack studies/records/results/stack.csv

Of each run: redundant lines and accuracy on the 500 held-out problems after the training, and the
mean over the steps of ln(redundant lines a response + .05), which also sees how soon they go. A
pair is tested by a paired t-test over its seeds, each measure with Holm's correction over the pairs
given; the interval is Student's, 95%, uncorrected. The runs of `stack_runs.py` are compared with
the loop's of the same arm: inside are those within the 95% prediction interval, mean +- t sd sqrt(1
+ 1/n), of the loop's n seeds.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from tabulate import tabulate

from studies.comparison.paired import half_interval, holm, p_value, t_quantile

KEPT = ("accuracy", "tokens", "essential", "redundant", "price")
MEASURES = {
    "log redundant": "{:+.2f}",
    "redundant": "{:+.2f}",
    "accuracy": "{:+.3f}",
    "tokens": "{:+.1f}",
}
ARM = ["world", "arm", "theta", "max_steps"]
# Row of the map -> arm; of two, the first that was trained.
MAP = {
    "uniform": ("steps.uniform",),
    "steps, tau 1": ("steps.tau1",),
    "steps, monotone 0.25sd": ("steps.mono0.25sd",),
    "steps, oracle": ("steps.oracle",),
    "steps, anti": ("steps.anti",),
    "weights, tau 1": ("weights.tau1",),
    "weights, 0.25sd": ("weights.0.25sd+floor", "weights.0.25sd"),
    "weights, shuffled": ("weights.shuffled",),
    "weights, 1sd": ("weights.1sd",),
    "weights, monotone 0.25sd": ("weights.mono0.25sd+floor", "weights.mono0.25sd"),
    "weights, oracle": ("weights.oracle",),
    "weights, anti": ("weights.anti",),
}


def read_runs(folder: Path) -> pd.DataFrame:
    """A row a step of each finished run; the held-out problems' has no step."""
    frames = []
    for file in sorted(folder.glob("*.jsonl")):
        world, arm, theta, max_steps, seed = file.stem.split("-")
        rows = pd.read_json(file, lines=True, precise_float=True)
        if rows.step.isna().any():
            names = {
                "world": world,
                "arm": arm,
                "theta": float(theta),
                "max_steps": int(max_steps),
                "seed": int(seed),
            }
            frames.append(rows.reindex(columns=["step", *KEPT]).assign(**names))
    return pd.concat(frames)[[*ARM, "seed", "step", *KEPT]].round(5)


def by_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The measures of each run."""
    runs = rows[rows.step.isna()].set_index([*ARM, "seed"])[
        ["redundant", "accuracy", "tokens", "essential"]
    ]
    steps = rows[rows.step.notna()]
    logs = (
        (steps.redundant + 0.05)
        .map(math.log)
        .groupby([steps[name] for name in [*ARM, "seed"]])
        .mean()
    )
    return runs.assign(**{"log redundant": logs}).reset_index()


def means(runs: pd.DataFrame) -> str:
    """A row an arm: means over seeds and, over several, standard deviations."""
    lines = []
    for arm, own in runs.groupby(ARM):
        cells = [
            f"{own[name].mean():.2f} ({own[name].std():.2f})"
            for name in ("log redundant", "redundant")
        ]
        cells += [
            f"{own.accuracy.mean():.1%}",
            f"{own.tokens.mean():.1f}",
            f"{own.essential.mean():.2f}",
        ]
        lines.append([*arm, len(own), *(cell.replace(" (nan)", "") for cell in cells)])
    header = [
        "world",
        "arm",
        "theta",
        "K",
        "seeds",
        "ln redundant, mean over steps (sd)",
        "redundant at the end (sd)",
    ]
    header += ["accuracy", "tokens", "essential"]
    return tabulate(lines, header, "github", disable_numparse=True)


def differences(runs: pd.DataFrame, pairs: Sequence[str]) -> str:
    """A row a pair: first minus second, on the seeds that both have."""
    found = {}
    for pair in pairs:
        arms, _, theta = pair.partition("@")
        own = runs[runs.theta == float(theta)]
        first, second = (own[own.arm == arm].set_index("seed") for arm in arms.split("/"))
        for name in MEASURES:
            found[pair, name] = (first[name] - second[name]).dropna().tolist()
    corrected = {}
    for name in MEASURES:
        corrected[name] = holm({pair: p_value(found[pair, name]) for pair in pairs})
    lines = []
    for pair in pairs:
        cells = []
        for name, form in MEASURES.items():
            change = found[pair, name]
            mean = sum(change) / len(change)
            half = half_interval(change)
            low = form.format(mean - half)
            high = form.format(mean + half)
            p = corrected[name][pair]
            cells.append(
                f"{form.format(mean)} ({low} to {high}), "
                + (f"p {p:.3f}" if p >= 0.001 else "p < 0.001")
            )
        lines.append([*re.split("[/@]", pair), len(found[pair, "tokens"]), *cells])
    return tabulate(
        lines, ["arm", "less", "theta", "seeds", *MEASURES], "github", disable_numparse=True
    )


def world_map(runs: pd.DataFrame) -> str:
    """A row an arm, a column a world with its settings.

    A cell has redundant lines at the end, accuracy and the number of seeds.
    """
    columns = {
        f"{world}, theta {theta:g}, K {k}": own
        for (world, theta, k), own in runs.groupby([ARM[0], *ARM[2:]])
    }
    lines = []
    for name, arms in MAP.items():
        cells = []
        for own in columns.values():
            found = next((own[own.arm == arm] for arm in arms if (own.arm == arm).any()), own[:0])
            cell = f"{found.redundant.mean():.2f}, {found.accuracy.mean():.0%} ({len(found)})"
            cells.append(cell if len(found) else "")
        lines.append([name, *cells])
    return tabulate(
        lines, ["the price paid by, which weights", *columns], "github", disable_numparse=True
    )


def agreement(stack: pd.DataFrame, loop: pd.DataFrame, settings: Sequence[str] = ARM) -> str:
    """A row an arm of the stack: its mean, the loop's, the interval, and the runs inside.

    Runs with equal `settings` are of one arm. The loop's mean is of the same seeds. The last row:
    the stack's runs less the loop's of the same seed and arm, a seed's arms taken together.
    """
    settings = list(settings)
    lines = []
    pairs = stack.merge(loop, on=[*settings, "seed"], suffixes=("", " loop"))
    for arm, own in stack.groupby(settings):
        same = loop.set_index(settings).loc[[arm]].set_index("seed")
        cells = []
        for name, form in MEASURES.items():
            form = form.replace("+", "")
            mean = same[name].mean()
            spread = same[name].std() * math.sqrt(1 + 1 / len(same))
            half = t_quantile(len(same) - 1) * spread
            inside = own[name].between(mean - half, mean + half).sum()
            numbers = (own[name].mean(), same.loc[own.seed, name].mean(), mean - half, mean + half)
            first, second, low, high = map(form.format, numbers)
            cells.append(f"{first}; {second} ({low} to {high}); {inside} of {len(own)}")
        lines.append([", ".join(map(str, arm)), *cells])
    cells = []
    for name, form in MEASURES.items():
        change = (pairs[name] - pairs[f"{name} loop"]).groupby(pairs.seed).mean().tolist()
        mean = sum(change) / len(change)
        half = half_interval(change)
        cells.append(
            f"{form.format(mean)} ({form.format(mean - half)} to {form.format(mean + half)})"
        )
    lines.append([f"less the loop, {len(change)} seeds", *cells])
    return tabulate(lines, ["arm of the stack", *MEASURES], "github", disable_numparse=True)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Redundant lines over the steps on a logarithmic axis, the mean of each arm over its seeds.

    A panel a world.
    """
    import matplotlib.pyplot as plt

    steps = rows[rows.step.notna()]
    worlds = list(steps.groupby(["world", "theta", "max_steps"]))
    columns = min(3, len(worlds))
    size = (math.ceil(len(worlds) / columns), columns)
    figure, axes = plt.subplots(*size, figsize=(5.5 * size[1], 4 * size[0]), squeeze=False)
    for axis in axes.flat[len(worlds) :]:
        axis.remove()
    for axis, ((world, theta, max_steps), own) in zip(axes.flat, worlds, strict=False):
        for arm, runs in own.groupby("arm"):
            curve = runs.groupby("step").redundant.mean() + 0.05
            axis.plot(curve.index, curve, label=f"{arm} ({runs.seed.nunique()})")
        title = f"{world}, theta {theta:g}, K {max_steps}"
        axis.set(
            yscale="log", xlabel="step", ylabel="redundant lines a response + .05", title=title
        )
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=80)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--runs", type=Path, help="folder of plain_loop.py")
    source.add_argument("--results", type=Path, help="a CSV that was kept")
    parser.add_argument("--keep", type=Path, help="add the runs to this CSV")
    parser.add_argument("--world")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument(
        "--pairs", nargs="+", default=[], help="arms to compare, FIRST/SECOND@THETA"
    )
    parser.add_argument("--map", action="store_true", help="a table of the arms on all worlds")
    parser.add_argument(
        "--stack", type=Path, help="compare the CSV of stack_runs.py with the loop's runs"
    )
    parser.add_argument("--picture", type=Path, help="draw redundant lines over the steps here")
    args = parser.parse_args()
    rows = pd.read_csv(args.results) if args.results else read_runs(args.runs)
    if args.keep:
        if args.keep.exists():
            rows = pd.concat([pd.read_csv(args.keep), rows]).drop_duplicates(
                [*ARM, "seed", "step"], keep="last"
            )
            rows = rows.sort_values([*ARM, "seed"], kind="stable")
        rows.to_csv(args.keep, index=False)
    rows = rows[
        (rows.world == (args.world or rows.world)) & rows.seed.isin(args.seeds or rows.seed)
    ]
    runs = by_run(rows)
    if args.stack:
        print(agreement(by_run(pd.read_csv(args.stack)), runs))
    else:
        print(world_map(runs) if args.map else means(runs))
    if args.picture:
        draw(rows, args.picture)
    if args.pairs:
        print("\n" + differences(runs, args.pairs))


if __name__ == "__main__":
    main()
