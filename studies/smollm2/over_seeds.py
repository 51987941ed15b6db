"""Methods over their training seeds: what a difference between them is worth.

The unit is a seed. Pairs of methods, from the file that the example keeps:

    python -m studies.smollm2.over_seeds \
        studies/smollm2/results/responses.csv.gz --pairs swap/grpo
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
from tabulate import tabulate

from studies.comparison.paired import half_interval, holm, p_value

FIRST_SEED = 42
MEASURES = {"accuracy": "accuracy, points", "tokens": "tokens"}
OF_PAIRS = [*MEASURES, "redundant"]

# method -> seed -> measure -> mean over the held-out problems
Means = dict[str, dict[int, dict[str, float]]]


def run_name(objective: str, seed: int) -> str:
    """The folder of a training: its objective, and its seed unless that is the first one."""
    return objective if seed == FIRST_SEED else f"{objective}_{seed}"


def by_method(runs: Mapping[str, Mapping[str, float]]) -> Means:
    """Runs by method and seed: `swap_43` is swap with seed 43, `swap` with the first seed."""
    found: Means = {}
    for name, means in runs.items():
        parts = re.fullmatch(r"(.+)_(\d+)", name)
        method, seed = (parts[1], int(parts[2])) if parts else (name, FIRST_SEED)
        found.setdefault(method, {})[seed] = dict(means)
    return found


def table(runs: Mapping[str, Mapping[str, float]], reference: str) -> str | None:
    """A row per method with two seeds at least, or None where there is no such method.

    The first run is the base. Changes since the base, which is one policy, and differences from the
    reference, paired by seed: means with 95% intervals by Student's t over seeds, and the p of the
    t-test after Holm's correction over the whole table.
    """
    (first, base), *trained = runs.items()
    found = by_method(dict(trained))
    methods = {method: seeds for method, seeds in found.items() if len(seeds) > 1}
    if not methods:
        return None
    differences: dict[tuple[str, str, str], list[float]] = {}
    others = methods.get(reference, {})
    for method, seeds in methods.items():
        shared = sorted(set(seeds) & set(others)) if method != reference else []
        for measure in MEASURES:
            differences[method, first, measure] = [
                means[measure] - base[measure] for means in seeds.values()
            ]
            if len(shared) > 1:
                differences[method, reference, measure] = [
                    seeds[seed][measure] - others[seed][measure] for seed in shared
                ]
    corrected = holm({key: p_value(values) for key, values in differences.items()})

    def cells(key: tuple[str, str, str]) -> list[str]:
        if key not in differences:
            return ["", ""]
        values = differences[key]
        return [f"{fmean(values):+.1f} ± {half_interval(values):.1f}", f"{corrected[key]:.3f}"]

    header = ["method", "seeds", "accuracy % (sd)", "tokens (sd)"]
    sides = [first]
    if any(side == reference for _, side, _ in differences):
        sides.append(reference)
    columns = list(product(sides, MEASURES))
    for side, measure in columns:
        header += [f"{MEASURES[measure]}, from {side}", "p (Holm)"]
    rows = []
    for method, seeds in methods.items():
        row = [method, ", ".join(map(str, sorted(seeds)))]
        for measure in MEASURES:
            row.append(_mean([means[measure] for means in seeds.values()]))
        for side, measure in columns:
            row += cells((method, side, measure))
        rows.append(row)
    return tabulate(rows, header, "github", disable_numparse=True)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({stdev(values):.1f})"


def pairs_table(runs: Mapping[str, Mapping[str, float]], pairs: Sequence[str]) -> str:
    """A row per pair FIRST/SECOND: first less second, paired by seed.

    Means with Student's 95% intervals over seeds, and the p of the t-test after Holm's correction
    over the pairs, for each measure.
    """
    methods = by_method(runs)
    differences: dict[str, dict[str, list[float]]] = {measure: {} for measure in OF_PAIRS}
    for pair in pairs:
        first, second = (methods[name] for name in pair.split("/"))
        for seed in sorted(first.keys() & second.keys()):
            for measure, of_pairs in differences.items():
                change = first[seed][measure] - second[seed][measure]
                of_pairs.setdefault(pair, []).append(change)
    corrected = {}
    for measure, of_pairs in differences.items():
        p_values = {pair: p_value(values) for pair, values in of_pairs.items()}
        corrected[measure] = holm(p_values)
    rows = []
    for pair in pairs:
        cells = []
        for measure, of_pairs in differences.items():
            values = of_pairs[pair]
            interval = f"{fmean(values):+.2f} ± {half_interval(values):.2f}"
            cells.append(f"{interval}, p {corrected[measure][pair]:.3f}")
        rows.append([pair.replace("/", " less "), len(values), *cells])
    return tabulate(rows, ["", "seeds", *OF_PAIRS], "github", disable_numparse=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("responses", type=Path, help="responses.csv.gz of the example")
    parser.add_argument("--pairs", nargs="+", required=True, help="methods, as FIRST/SECOND")
    args = parser.parse_args()
    means = pd.read_csv(args.responses).groupby("policy")[OF_PAIRS].mean()
    print(means.round(2).to_markdown() + "\n")
    print(pairs_table(means.to_dict("index"), args.pairs))


if __name__ == "__main__":
    main()
