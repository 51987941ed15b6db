"""Methods over their training seeds: what a difference between them is worth.

The unit is a seed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev

from paired import half_interval, holm, p_value
from tabulate import tabulate

FIRST_SEED = 42
MEASURES = {"accuracy": "accuracy, points", "tokens": "tokens"}

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
    methods = {
        method: seeds for method, seeds in by_method(dict(trained)).items() if len(seeds) > 1
    }
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
    sides = [first, *([reference] if any(key[1] == reference for key in differences) else [])]
    columns = [(side, measure) for side in sides for measure in MEASURES]
    for side, measure in columns:
        header += [f"{MEASURES[measure]}, from {side}", "p (Holm)"]
    rows = [
        [
            method,
            ", ".join(map(str, sorted(seeds))),
            *(_mean([means[measure] for means in seeds.values()]) for measure in MEASURES),
            *(cell for column in columns for cell in cells((method, *column))),
        ]
        for method, seeds in methods.items()
    ]
    return tabulate(rows, header, "github", disable_numparse=True)


def _mean(values: Sequence[float]) -> str:
    return f"{fmean(values):.1f} ({stdev(values):.1f})"
