r"""What separates the methods of a comparison: intervals, paired differences, lines kept.

    python -m studies.comparison.differences --world decomposition \
        --runs outputs/compare_decomposition

Writes differences.md and pareto.png into the folder. With `--results results/decomposition.csv.gz`
the values of every method, seed and problem are kept there, and what it has and the folder lacks is
compared as well. All methods answered the same problems, and a seed had the same prompts in the
same order with each of them, so two methods are compared problem by problem and seed by seed, on
the seeds that both have. Intervals are of 95%, from a bootstrap that draws seeds and problems; with
few seeds they are too narrow, so of accuracy the differences also have the interval of Student's t
over the seeds alone, and in how many seeds it changed in the direction of the mean.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, cycle, product
from operator import itemgetter
from pathlib import Path

import numpy as np
import pandas as pd
from tabulate import tabulate

from openrlhf_swap.command import Parser, run_command
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation.measures import Floats
from openrlhf_swap.files import read_rows, write_text
from openrlhf_swap.quickstart.world import World
from studies.comparison.paired import t_quantile
from studies.toy_tasks import NAMES, load

RESAMPLES = 10_000
BASE = "base"
LEVELS = ((1, 4), (5, 8), (9, 12))  # operations of a problem

# Name of a measure -> one value a seed and problem, (seeds, problems).
Results = dict[str, Floats]


@dataclass(frozen=True)
class Method:
    """The seeds that a method was trained with, in order, and the measures of its policies."""

    seeds: tuple[int, ...]
    results: Results

    def of(self, seeds: Collection[int]) -> Results:
        """The results of these seeds alone."""
        chosen = [seed in seeds for seed in self.seeds]
        return {name: values[chosen] for name, values in self.results.items()}

    def joined(self, other: Method) -> Method:
        """Its seeds and those of `other` that it lacks."""
        lacking = sorted(set(other.seeds) - set(self.seeds))
        seeds = self.seeds + tuple(lacking)
        more = other.of(lacking)
        order = np.argsort(seeds)
        results = {
            name: np.concatenate([values, more[name]])[order]
            for name, values in self.results.items()
        }
        return Method(tuple(sorted(seeds)), results)


def read_results(files: Sequence[Path], labels: Sequence[str]) -> Results:
    """Of the responses that evaluate.py wrote, one file a seed; accuracy in percent.

    Raises:
        DataError: for files of different problems, or with fewer samples of one than of another.
    """
    runs = [list(read_rows(file)) for file in files]
    asked = [list(map(itemgetter("problem"), rows)) for rows in runs]
    if any(questions != asked[0] for questions in asked):
        raise DataError(
            f"{files[0].parent.parent} has answers to different problems; evaluate with the same "
            "ones"
        )
    samples = Counter(asked[0])
    if len(set(samples.values())) > 1:
        raise DataError(
            f"{files[0]} has not the same number of samples of every problem; evaluate again"
        )
    shape = (len(runs), len(samples), samples[asked[0][0]])
    tables = [pd.DataFrame(rows) for rows in runs]

    def means(key: str) -> Floats:
        values = np.stack([table[key].to_numpy(np.float64) for table in tables])
        return values.reshape(shape).mean(axis=2)

    found = {"accuracy": 100.0 * means("correct")}
    for name in ("tokens", *labels):
        found[name] = means(name)
    return found


def interval(values: Floats, seed: int = 0) -> tuple[float, float, float]:
    """Mean of (seeds, problems), and its interval when both are drawn again."""
    seeds, problems = values.shape
    rng = np.random.default_rng(seed)
    of_seeds = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=RESAMPLES) / seeds
    of_problems = (
        rng.multinomial(problems, np.full(problems, 1 / problems), size=RESAMPLES) / problems
    )
    means = np.einsum("rs,sp,rp->r", of_seeds, values, of_problems, optimize=True)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(values.mean()), float(low), float(high)


def with_interval(values: Floats) -> str:
    """Mean of (seeds, problems) and its interval."""
    return "{:.1f} ({:.1f} to {:.1f})".format(*interval(values))


def difference(values: Floats) -> str:
    """The same of a difference: with signs, and bold where 0 lies outside."""
    mean, low, high = interval(values)
    mark = "**" if low > 0 or high < 0 else ""
    return f"{mark}{mean:+z.1f} ({low:+z.1f} to {high:+z.1f}){mark}"


def student(means: Floats) -> str:
    """Mean of at least two seeds' means, and half its 95% interval by Student's t.

    Bold where 0 lies outside.
    """
    if len(means) < 2:
        return "-"
    half = t_quantile(len(means) - 1) * means.std(ddof=1) / np.sqrt(len(means))
    mark = "**" if abs(means.mean()) > half else ""
    return f"{mark}{means.mean():+z.1f} ± {half:.1f}{mark}"


def overview(methods: Mapping[str, Method], labels: Sequence[str]) -> str:
    """A row a method: accuracy, tokens, and the share of the base's lines that it kept.

    There is a share for each kind of lines.
    """
    base = methods[BASE].results
    rows = []
    for name, results in ((name, method.results) for name, method in methods.items()):
        cells = [with_interval(results[of]) for of in ("accuracy", "tokens")]
        kept = [
            f"{results[label].mean():.2f} ({_share(results[label], base[label])})"
            for label in labels
        ]
        rows.append([name, len(results["accuracy"]), *cells, *kept])
    header = [
        "",
        "seeds",
        "accuracy %",
        "tokens",
        *(f"{label} lines (of the base's)" for label in labels),
    ]
    return tabulate(rows, header, "github", disable_numparse=True)


def keep(path: Path, methods: Mapping[str, Method], levels: Sequence[int]) -> None:
    """Write a row for every method, seed and problem; the same values give the same bytes."""
    names = list(methods[BASE].results)
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["method", "seed", "problem", "level", *names])
    for name, method in methods.items():
        table = np.stack([method.results[measure] for measure in names], axis=-1)
        for seed, of_seed in zip(method.seeds, table, strict=True):
            for problem, (level, values) in enumerate(zip(levels, of_seed, strict=True)):
                rows.writerow([name, seed, problem, level, *(f"{value:g}" for value in values)])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read_kept(path: Path) -> tuple[dict[str, Method], list[int]]:
    """What `keep` wrote: methods and the problems' levels."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    values: dict[str, dict[int, list[list[float]]]] = {}
    for name, seed, _, _, *measured in rows:
        values.setdefault(name, {}).setdefault(int(seed), []).append(
            [float(value) for value in measured]
        )
    methods = {
        name: Method(
            tuple(seeds),
            dict(zip(header[4:], np.moveaxis(np.array([*seeds.values()]), 2, 0), strict=True)),
        )
        for name, seeds in values.items()
    }
    first = [row for row in rows if row[:2] == rows[0][:2]]
    return methods, [int(row[3]) for row in first]


def _share(values: Floats, base: Floats) -> str:
    return f"{values.mean() / base.mean():.0%}" if base.mean() else "-"


def by_level(methods: Mapping[str, Method], levels: Sequence[int]) -> str:
    """A row a method: accuracy and tokens of the problems that need so many operations."""
    needed = np.array(levels)
    header = [""]
    parts = []
    for low, high in LEVELS:
        part = (low <= needed) & (needed <= high)
        if part.any():
            header.append(f"{low} to {high} operations ({part.sum()})")
            parts.append(part)
    rows = []
    for name, method in methods.items():
        cells = [name]
        for part in parts:
            accuracy = method.results["accuracy"][:, part].mean()
            tokens = method.results["tokens"][:, part].mean()
            cells.append(f"{accuracy:.1f}%, {tokens:.0f}")
        rows.append(cells)
    return tabulate(rows, header, "github", disable_numparse=True)


def differences(methods: Mapping[str, Method], against: str | None = None) -> str:
    """A row a pair of methods, or of `against` and another: second minus first.

    The seeds are those that both have.
    """
    names = [name for name in methods if not is_base(name)]
    pairs = (
        [(against, name) for name in names if name != against]
        if against
        else combinations(names, 2)
    )
    rows = []
    for first, second in pairs:
        seeds = set(methods[first].seeds) & set(methods[second].seeds)
        if not seeds:
            continue
        before = methods[first].of(seeds)
        after = methods[second].of(seeds)
        changes = [after[name] - before[name] for name in ("accuracy", "tokens")]
        of_seeds = changes[0].mean(axis=1)
        same = np.sign(of_seeds) == np.sign(of_seeds.mean())
        rows.append(
            [
                first,
                second,
                *map(difference, changes),
                student(of_seeds),
                f"{same.sum()} of {len(same)}",
            ]
        )
    header = [
        "from",
        "to",
        "accuracy, points",
        "tokens",
        "accuracy by seeds alone",
        "seeds with that sign",
    ]
    return tabulate(rows, header, "github", disable_numparse=True)


def draw(methods: Mapping[str, Method], path: Path) -> None:
    """Accuracy against tokens, each method with its intervals.

    One with less than half of the base's accuracy would press the others together: it is named
    instead.
    """
    import matplotlib.pyplot as plt

    columns = 1 + len(methods) // 24  # of the legend
    figure, panel = plt.subplots(figsize=(6.5 + 1.5 * columns, 4.5), layout="constrained")
    least = methods[BASE].results["accuracy"].mean() / 2
    far = []
    for (name, method), (marker, colour) in zip(
        methods.items(), cycle(product("os^Dv", range(10))), strict=False
    ):
        (x, left, right), (y, low, high) = (
            interval(method.results[of]) for of in ("tokens", "accuracy")
        )
        if y < least:
            far.append(f"{name} {y:.1f}% at {x:.0f} tokens")
            continue
        spread = {"xerr": [[x - left], [right - x]], "yerr": [[y - low], [high - y]]}
        panel.errorbar(x, y, **spread, marker=marker, color=f"C{colour}", elinewidth=1, label=name)
    if far:
        panel.set_title("below: " + ", ".join(far), fontsize="small", wrap=True)
    panel.set_xlabel("tokens a response")
    panel.set_ylabel("accuracy, %")
    figure.legend(loc="outside right upper", fontsize="small", ncols=columns)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def finished_runs(folder: Path) -> dict[str, list[Path]]:
    """Name of a method, or of a base -> files of its responses, one a seed.

    Raises:
        DataError: when there is no base, or nothing to compare it with.
    """
    methods = {BASE: [folder / f"{BASE}.responses.jsonl"]}
    for file in sorted(folder.glob(f"{BASE}_*.responses.jsonl")):
        methods[file.name.removesuffix(".responses.jsonl")] = [file]
    for run in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(run.glob("seed_*/result.responses.jsonl"), key=lambda file: seeds_of([file]))
        if files:
            methods[run.name] = files
    if not methods[BASE][0].exists() or all(map(is_base, methods)):
        raise DataError(
            f"{folder} holds no finished comparison; run compare.sh with OUTPUT={folder} first"
        )
    return methods


def is_base(name: str) -> bool:
    """Whether it was not trained: the base, or what compare.sh taught to read a budget.

    Such as `base_budget`.
    """
    return name == BASE or name.startswith(f"{BASE}_")


def seeds_of(files: Sequence[Path]) -> tuple[int, ...]:
    """By the folders' names; 0 for a base, which has none."""
    return tuple(
        int(file.parent.name.removeprefix("seed_")) if file.name.startswith("result") else 0
        for file in files
    )


def compare(
    world: World, folder: Path, kept: Path | None = None, against: str | None = None
) -> str:
    """All tables of a comparison; writes them and the picture, and the values into `kept`.

    Raises: DataError: when nothing is there to be compared, `against` is not, or `kept` is of other
        problems.
    """
    runs = finished_runs(folder)
    results = {
        name: Method(seeds_of(files), read_results(files, world.MEASURES))
        for name, files in runs.items()
    }
    questions = dict.fromkeys(row["problem"] for row in read_rows(runs[BASE][0]))
    levels = [world.level(question) for question in questions]
    if kept:
        if kept.exists():
            earlier, earlier_levels = read_kept(kept)
            if earlier_levels != levels:
                raise DataError(f"{kept} is of other problems than {folder}; name another file")
            joined = {
                name: method.joined(earlier[name])
                for name, method in results.items()
                if name in earlier
            }
            results = earlier | results | joined
        keep(kept, results, levels)
    trained = [name for name in results if not is_base(name)]
    if against and against not in trained:
        raise DataError(
            f"--against is {against}, which was not trained; use one of {', '.join(trained)}"
        )
    tables = [
        overview(results, world.MEASURES),
        by_level(results, levels),
        differences(results, against),
    ]
    text = "\n\n".join(tables) + "\n"
    write_text(folder / "differences.md", text)
    draw(results, folder / "pareto.png")
    return text


def main(argv: list[str]) -> None:
    """Print the tables."""
    parser = Parser("differences", __doc__)
    parser.add_argument("--world", choices=NAMES, default=NAMES[0])
    parser.add_argument("--runs", type=Path, required=True, help="output folder of compare.sh")
    parser.add_argument(
        "--results", type=Path, help="keep all values in this .csv.gz, and compare with those in it"
    )
    parser.add_argument(
        "--against", help="of the differences, only those of this method and every other"
    )
    args = parser.parse_args(argv)
    if not args.runs.is_dir():
        raise DataError(
            f"--runs is {args.runs}, which is not a folder; give the output folder of compare.sh"
        )
    print(compare(load(args.world), args.runs, args.results, args.against), end="")


if __name__ == "__main__":
    sys.exit(run_command(main))
