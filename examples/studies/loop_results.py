"""Collect the runs of `plain_loop.py` into one CSV, and print what they say: means, and paired tests over seeds.

    python examples/studies/loop_results.py --runs outputs/loop --keep examples/studies/results/loop.csv.gz
    python examples/studies/loop_results.py --results examples/studies/results/loop.csv.gz --world columns \
        --seeds 101 102 103 --pairs weights.mono0.25sd/steps.uniform@1 weights.oracle/weights.anti@1

Of each run: redundant lines and accuracy on the 500 held-out problems after the training, and the mean over the
steps of ln(redundant lines a response + .05), which also sees how soon they go. A pair is tested by a paired t-test
over its seeds, each measure with Holm's correction over the pairs given; the interval is Student's, 95%, uncorrected.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from paired import half_interval, holm, p_value
from tabulate import tabulate

KEPT = ("accuracy", "tokens", "essential", "redundant", "price")
MEASURES = {"log redundant": "{:+.2f}", "redundant": "{:+.2f}", "accuracy": "{:+.3f}", "tokens": "{:+.1f}"}
ARM = ["world", "arm", "theta", "max_steps"]


def read_runs(folder: Path) -> pd.DataFrame:
    """A row a step of each finished run; the held-out problems' has no step."""
    frames = []
    for file in sorted(folder.glob("*.jsonl")):
        world, arm, theta, max_steps, seed = file.stem.split("-")
        rows = pd.read_json(file, lines=True, precise_float=True)
        if rows.step.isna().any():
            names = {"world": world, "arm": arm, "theta": float(theta), "max_steps": int(max_steps), "seed": int(seed)}
            frames.append(rows.reindex(columns=["step", *KEPT]).assign(**names))
    return pd.concat(frames)[[*ARM, "seed", "step", *KEPT]].round(5)


def by_run(rows: pd.DataFrame) -> pd.DataFrame:
    """The measures of each run."""
    runs = rows[rows.step.isna()].set_index([*ARM, "seed"])[["redundant", "accuracy", "tokens", "essential"]]
    steps = rows[rows.step.notna()]
    logs = (steps.redundant + 0.05).map(math.log).groupby([steps[name] for name in [*ARM, "seed"]]).mean()
    return runs.assign(**{"log redundant": logs}).reset_index()


def means(runs: pd.DataFrame) -> str:
    """A row an arm: means over seeds and, over several, standard deviations."""
    lines = []
    for arm, own in runs.groupby(ARM):
        cells = [f"{own[name].mean():.2f} ({own[name].std():.2f})" for name in ("log redundant", "redundant")]
        cells += [f"{own.accuracy.mean():.1%}", f"{own.tokens.mean():.1f}", f"{own.essential.mean():.2f}"]
        lines.append([*arm, len(own), *(cell.replace(" (nan)", "") for cell in cells)])
    header = ["world", "arm", "theta", "K", "seeds", "ln redundant, mean over steps (sd)", "redundant at the end (sd)"]
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
    lines = []
    corrected = {name: holm({pair: p_value(found[pair, name]) for pair in pairs}) for name in MEASURES}
    for pair in pairs:
        cells = []
        for name, form in MEASURES.items():
            change = found[pair, name]
            mean, half = sum(change) / len(change), half_interval(change)
            low, high = form.format(mean - half), form.format(mean + half)
            p = corrected[name][pair]
            cells.append(f"{form.format(mean)} ({low} to {high}), " + (f"p {p:.3f}" if p >= 0.001 else "p < 0.001"))
        lines.append([*re.split("[/@]", pair), len(found[pair, "tokens"]), *cells])
    return tabulate(lines, ["arm", "less", "theta", "seeds", *MEASURES], "github", disable_numparse=True)


def draw(rows: pd.DataFrame, path: Path) -> None:
    """Redundant lines over the steps on a logarithmic axis, the mean of each arm over its seeds; a panel a world."""
    import matplotlib.pyplot as plt

    steps = rows[rows.step.notna()]
    worlds = list(steps.groupby(["world", "theta", "max_steps"]))
    figure, axes = plt.subplots(1, len(worlds), figsize=(5.5 * len(worlds), 4), squeeze=False)
    for axis, ((world, theta, _), own) in zip(axes[0], worlds, strict=True):
        for arm, runs in own.groupby("arm"):
            curve = runs.groupby("step").redundant.mean() + 0.05
            axis.plot(curve.index, curve, label=f"{arm} ({runs.seed.nunique()})")
        axis.set(
            yscale="log", xlabel="step", ylabel="redundant lines a response + .05", title=f"{world}, theta {theta:g}"
        )
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--runs", type=Path, help="folder of plain_loop.py")
    source.add_argument("--results", type=Path, help="a CSV that was kept")
    parser.add_argument("--keep", type=Path, help="write the CSV here")
    parser.add_argument("--world")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--pairs", nargs="+", default=[], help="arms to compare, FIRST/SECOND@THETA")
    parser.add_argument("--picture", type=Path, help="draw redundant lines over the steps here")
    args = parser.parse_args()
    rows = pd.read_csv(args.results) if args.results else read_runs(args.runs)
    if args.keep:
        rows.to_csv(args.keep, index=False)
    rows = rows[(rows.world == (args.world or rows.world)) & rows.seed.isin(args.seeds or rows.seed)]
    runs = by_run(rows)
    print(means(runs))
    if args.picture:
        draw(rows, args.picture)
    if args.pairs:
        print("\n" + differences(runs, args.pairs))


if __name__ == "__main__":
    main()
