r"""Fronts of accuracy and length instead of points: regret, area, accuracy at given lengths.

The lengths are multiples of the shortest one.

    export WORLD=words STEPS=20 EVALUATE_EVERY=5 SEEDS="1 2 3 4 5" OUTPUT=outputs/fronts_words
    bash studies/comparison/compare.sh --configurations studies/comparison/rows/fronts.json \
        --parallel 2
    python -m studies.comparison.fronts --best-accuracy 98.6 --best-tokens 38.5 \
        --runs outputs/fronts_words --results studies/records/results/fronts_words.csv.gz

A configuration is named METHOD@STRENGTH, such as swap@0.3, and evaluates itself on held-out
problems every five steps; with the policy before training, the points of a seed and a method are
those of all its strengths and steps.

* Front of a seed: the highest accuracy of its points with at most so many tokens; 0 below the
shortest.
* Area: the mean of that over log tokens, from L* to the base's length. A* and L* are those that
gates.py prints.
* Regret of a run's last point, in points: max(0, A* - A) + COST max(0, L - L*)/(L0 - L*). A
  method's strength is the one with the least mean regret over the other seeds. Beside it, of the
  same runs: needed lines that are missing (cut too much) and redundant ones that are left (too
  little).

One paired t-test a method against `--against`, on the areas of the seeds that both have, with
Holm's correction over all. A front is a maximum, so methods are comparable where they have as many
points: `--methods` leaves others out. `--last swap@1 uniform_penalty@1` prints these
configurations' last points instead, and paired t-tests of the others against the first on accuracy
and on tokens, with Holm's correction over all of the table. `--seeds` leaves all others out, such
as those that the strengths were chosen by. A run's last policy was evaluated by the training and
again by compare.sh: accuracy and tokens are the mean of both, missing and redundant lines the
second's. What was measured is kept in `--results`, and everything printed follows from that file.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean, stdev

from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import DataError
from studies.comparison.front_points import (
    BASE,
    Ideal,
    Point,
    area,
    by_seed,
    front,
    keep,
    of_methods,
    read_kept,
    read_runs,
    regret,
)
from studies.comparison.paired import half_interval, holm, p_value

MULTIPLES = (1.1, 1.25, 1.5)  # of L*
TESTED = ("accuracy", "tokens")  # measures of last points that are compared


def chosen_points(seeds: Mapping[int, Sequence[Point]], ideal: Ideal) -> list[Point]:
    """For each seed: the last point with the strength whose regret was least on the other seeds."""
    last: dict[int, dict[str, Point]] = {}
    for seed, points in seeds.items():
        ordered = sorted(points, key=lambda point: point.step)
        last[seed] = {point.strength: point for point in ordered if point.method != BASE}
    strengths = set.intersection(*(set(points) for points in last.values()))
    found = []
    for seed, points in last.items():
        others = [other for other in last if other != seed] or [seed]
        means = {}
        for strength in sorted(strengths):
            means[strength] = fmean(regret(last[other][strength], ideal) for other in others)
        found.append(points[min(means, key=means.__getitem__)])
    return found


def front_at(seeds: Mapping[int, Sequence[Point]], tokens: float) -> float:
    """The mean over the seeds of the highest accuracy with at most so many tokens."""
    return fmean(front(points, tokens) for points in seeds.values())


def strengths_of(points: Iterable[Point]) -> str:
    return ", ".join(sorted({point.strength for point in points}))


def table(points: Sequence[Point], ideal: Ideal, against: str, start: float = 1.0) -> str:
    """A row a method; areas begin at `start` L*.

    Raises:
        DataError: when `against` is not among them.
    """
    methods = by_seed(points)
    if against not in methods:
        raise DataError(
            f"--against is {against}, which was not trained; use one of "
            f"{', '.join(sorted(methods))}"
        )
    shortest = start * ideal.tokens
    areas: dict[str, dict[int, float]] = {}
    for method, seeds in methods.items():
        areas[method] = {
            seed: area(of_seed, shortest, ideal.base.tokens) for seed, of_seed in seeds.items()
        }
    changes = {}
    for method in methods:
        if method == against:
            continue
        shared = sorted(areas[method].keys() & areas[against].keys())
        changes[method] = [areas[method][seed] - areas[against][seed] for seed in shared]
    corrected = holm({method: p_value(change) for method, change in changes.items()})
    rows = []
    for method in sorted(methods, key=lambda method: -fmean(areas[method].values())):
        seeds = methods[method]
        chosen = chosen_points(seeds, ideal)
        cells = [
            method,
            len(seeds),
            strengths_of(point for point in points if point.method == method),
            f"{fmean(areas[method].values()):.1f}",
        ]
        cells += [f"{front_at(seeds, times * ideal.tokens):.1f}" for times in MULTIPLES]
        cells.append(f"{fmean(regret(point, ideal) for point in chosen):.1f}")
        cells.append(strengths_of(chosen))
        cells.append(f"{fmean(point.missing for point in chosen):.2f}")
        cells.append(f"{fmean(point.redundant for point in chosen):.2f}")
        cells.append(f"{fmean(changes[method]):+.1f}" if changes.get(method) else "")
        cells.append(f"{corrected[method]:.3f}" if method in corrected else "")
        rows.append(cells)
    header = ["method", "seeds", "strengths", "area"]
    header += [f"at {times:g} L*" for times in MULTIPLES]
    header += ["regret", "its strength", "missing", "redundant"]
    header += [f"area, from {against}", "p (Holm)"]
    return tabulate(rows, header, "github", disable_numparse=True)


def table_of_last(points: Sequence[Point], ideal: Ideal, names: Sequence[str]) -> str:
    """A row a configuration, METHOD@STRENGTH, of its last points.

    The first is what the others are compared with. Differences are with half their 95% interval by
    Student's t.

    Raises:
        DataError: when one has no points.
    """
    last = last_points(points, names)
    against = names[0]
    changes = {}
    for method, name in product(last, TESTED):
        if method != against:
            changes[method, name] = changes_of(last[method], last[against], name)
    corrected = holm({key: p_value(change) for key, change in changes.items()})
    regrets = {}
    for method, seeds in last.items():
        regrets[method] = fmean(regret(point, ideal) for point in seeds.values())
    rows = []
    for method in sorted(last, key=regrets.__getitem__):
        of_method = list(last[method].values())
        cells = [method, str(len(of_method))]
        for name in ("accuracy", "tokens", "missing", "redundant"):
            found = [getattr(point, name) for point in of_method]
            cells.append(with_deviation(found, digits=1 if name in TESTED else 2))
        cells.append(f"{regrets[method]:.1f}")
        for name in TESTED:
            change = changes.get((method, name))
            if change:
                interval = f" ± {half_interval(change):.1f}" if len(change) > 1 else ""
                cells += [f"{fmean(change):+.1f}{interval}", f"{corrected[method, name]:.3f}"]
            else:
                cells += ["", ""]
        rows.append(cells)
    header = ["configuration", "seeds", "accuracy % (sd)", "tokens (sd)", "missing (sd)"]
    header += ["redundant (sd)", "regret"]
    for name in TESTED:
        header += [f"{name}, from {against}", "p (Holm)"]
    return tabulate(rows, header, "github", disable_numparse=True)


def last_points(points: Sequence[Point], names: Sequence[str]) -> dict[str, dict[int, Point]]:
    """The last point of each seed, by configuration; DataError when one has none."""
    last: dict[str, dict[int, Point]] = defaultdict(dict)
    for point in sorted(points, key=lambda point: point.step):
        name = f"{point.method}@{point.strength}"
        if name in names:
            last[name][point.seed] = point
    for name in names:
        if name not in last:
            raise DataError(f"--last names {name}, of which there is no run with these seeds")
    return last


def changes_of(seeds: Mapping[int, Point], against: Mapping[int, Point], name: str) -> list[float]:
    """A measure less that of `against`, on the seeds that both have."""
    shared = sorted(seeds.keys() & against.keys())
    return [getattr(seeds[seed], name) - getattr(against[seed], name) for seed in shared]


def with_deviation(values: Sequence[float], digits: int) -> str:
    """The mean, and the standard deviation of at least two values."""
    mean = f"{fmean(values):.{digits}f}"
    return f"{mean} ({stdev(values):.{digits}f})" if len(values) > 1 else mean


def draw(points: Sequence[Point], ideal: Ideal, path: Path) -> None:
    """The mean front of each method over its seeds."""
    import matplotlib.pyplot as plt

    figure, panel = plt.subplots(figsize=(8, 4.5), layout="constrained")
    grid = [ideal.tokens * (ideal.base.tokens / ideal.tokens) ** (k / 200) for k in range(201)]
    for method, seeds in sorted(by_seed(points).items()):
        panel.plot(grid, [front_at(seeds, tokens) for tokens in grid], label=method)
    panel.plot([ideal.tokens], [ideal.accuracy], "k*", label="A*, L*")
    panel.set_xscale("log")
    for axis_formatter in (panel.xaxis.set_major_formatter, panel.xaxis.set_minor_formatter):
        axis_formatter("{x:g}")
    panel.set_xlabel("tokens a response, at most")
    panel.set_ylabel("accuracy, %")
    figure.legend(loc="outside right upper", fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(argv: list[str]) -> None:
    """Print the table."""
    parser = Parser("fronts", __doc__)
    parser.add_argument("--best-accuracy", type=float, required=True, help="A* in percent")
    parser.add_argument("--best-tokens", type=float, required=True, help="L*")
    parser.add_argument("--runs", type=Path, help="output folder of compare.sh")
    parser.add_argument(
        "--results", type=Path, required=True, help="keep all points in this .csv.gz, or read them"
    )
    parser.add_argument(
        "--against", default="swap", help="the method that the others are compared with"
    )
    parser.add_argument(
        "--methods",
        nargs="+",
        help="of table and picture: METHOD or METHOD@STRENGTH (default: all)",
    )
    parser.add_argument(
        "--area-from", type=float, default=1.0, metavar="X", help="areas begin at X L* (default: 1)"
    )
    parser.add_argument(
        "--last", nargs="+", help="print the last points of these configurations, METHOD@STRENGTH"
    )
    parser.add_argument("--seeds", type=int, nargs="+", help="use these alone (default: all)")
    parser.add_argument("--picture", type=Path, help="draw the fronts into this file")
    args = parser.parse_args(argv)
    kept = read_kept(args.results) if args.results.exists() else []
    new = read_runs(args.runs) if args.runs else []
    identities = {(p.method, p.strength, p.seed, p.step) for p in new}
    points = [p for p in kept if (p.method, p.strength, p.seed, p.step) not in identities] + new
    if {point.method for point in points} <= {BASE} or BASE not in {
        point.method for point in points
    }:
        raise DataError(
            f"--results {args.results} and --runs {args.runs} hold no finished run beside a "
            "base; train first"
        )
    points.sort(key=lambda p: (p.method != BASE, p.method, p.strength, p.seed, p.step))
    keep(args.results, points)
    ideal = Ideal(args.best_accuracy, args.best_tokens, points[0])
    print(
        f"A* {ideal.accuracy:g}%, L* {ideal.tokens:g} tokens; base {points[0].accuracy:.1f}%, "
        f"{points[0].tokens:.1f}\n"
    )
    used = [
        point
        for point in points
        if point.method == BASE or not args.seeds or point.seed in args.seeds
    ]
    if args.last:
        print(table_of_last(used, ideal, args.last))
        return
    if args.methods:
        used = of_methods(used, args.methods)
    print(table(used, ideal, args.against, args.area_from))
    if args.picture:
        draw(used, ideal, args.picture)


if __name__ == "__main__":
    sys.exit(run_command(main))
