r"""Who pays for a step, and what is it worth? Fronts and paired tests of runs of `loop_runs.py`.

    python -m studies.credit.who_pays --runs outputs/need/runs.jsonl \
        --keep studies/records/results/credit.csv
    python -m studies.credit.who_pays --stack outputs/credit_stack --agreement \
        --keep studies/records/results/credit.csv
    python -m studies.credit.who_pays --seeds 11 12 13 --fronts \
        --picture studies/records/pictures/credit_fronts.svg
    python -m studies.credit.who_pays --seeds 301 302 303 304 305 306 307 308 309 310 311 312 --test

Without `--test` it prints a row a world, arm, gamma and theta: means over the seeds. `--test`
prints the comparisons that `predictions.md` names, of each world and of their mean: differences
of the same seed, Student's 95% interval, and Holm's correction over all rows of the same kind and
test.
`--agreement` compares the runs of the whole stack, which have arms `stack.NAME`, with the loop's.
Everything follows from the kept file, which `--keep` adds runs to.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from openrlhf_swap.files import read_rows
from studies.comparison.paired import half_interval, holm, p_value
from studies.credit.loop_results import agreement
from studies.credit.loop_runs import TRAININGS, log_redundant
from studies.pictures import save_svg

RESULTS = Path(__file__).parents[1] / "records" / "results" / "credit.csv"
SETTINGS = ["world", "arm", "gamma", "theta", "seed", "steps", "rate"]
# Measure -> how a difference of it is printed.
MEASURES = {
    "accuracy": "{:+.3f}",
    "redundant": "{:+.2f}",
    "log redundant": "{:+.2f}",
    "tokens": "{:+.1f}",
}
# When a training began, its commit and its duration; older rows have none.
ORIGIN = ["started", "commit", "seconds"]
KEPT = [*SETTINGS, *MEASURES, "essential", *ORIGIN]
ALL_WORLDS = "mean of the worlds"
STACK = "stack."
LIMIT = r"_limit(\d+)"


@dataclass(frozen=True)
class Arm:
    """Arms of the same name, gamma and theta."""

    name: str
    gamma: float
    theta: float

    def runs(self, runs: pd.DataFrame) -> pd.DataFrame:
        """Its runs, by world and seed."""
        own = runs[
            (runs.arm == self.name) & (runs.gamma == self.gamma) & (runs.theta == self.theta)
        ]
        return own.set_index(["world", "seed"])[list(MEASURES)]


SUMMED = Arm("steps.uniform", gamma=1.0, theta=0.3)
SUMMED_STRONGLY = Arm("steps.uniform", gamma=1.0, theta=1.0)
OWN = Arm("steps.uniform", gamma=0.0, theta=2.0)
NEED = Arm("reward.need", gamma=0.0, theta=1.0)
LABELS = Arm("steps.oracle", gamma=0.0, theta=1.0)
LABELS_AT_2 = Arm("steps.oracle", gamma=0.0, theta=2.0)
GAINS = Arm("steps.mono0.25sd", gamma=0.0, theta=2.0)
NEED_OF_4 = Arm("reward.need.4.1", gamma=0.0, theta=1.0)
NEED_OF_4_DISCOUNTED = Arm("reward.need.4.1", gamma=0.5, theta=1.0)
NEED_OF_2 = Arm("reward.need.2.1", gamma=0.0, theta=1.0)
HALF_THE_NEED_OF_2 = Arm("reward.need.2.2", gamma=0.0, theta=1.0)
# The comparisons of each test, whose p are corrected together.
TESTS = (
    {
        "own less sum .3": (OWN, SUMMED),
        "own less sum 1": (OWN, SUMMED_STRONGLY),
        "need less own": (NEED, OWN),
        "labels less own": (LABELS, OWN),
    },
    {
        "labels 2 less own": (LABELS_AT_2, OWN),
        "gains less own": (GAINS, OWN),
        "need less gains": (NEED, GAINS),
    },
    {
        "need 2 less need": (NEED_OF_2, NEED),
        "need 2, half less need 2": (HALF_THE_NEED_OF_2, NEED_OF_2),
    },
    {"need 4 less need": (NEED_OF_4, NEED)},
    {"need 4, discount .5 less need 4": (NEED_OF_4_DISCOUNTED, NEED_OF_4)},
)


@dataclass(frozen=True)
class Difference:
    """The differences of a comparison in a measure, one a seed."""

    test: int  # among TESTS
    comparison: str
    world: str
    measure: str
    by_seed: list[float]

    @property
    def kind(self) -> tuple[int, str, bool]:
        """Holm corrects over a test's rows of a measure, of single worlds or of their mean."""
        return self.test, self.measure, self.world == ALL_WORLDS

    def shown(self, corrected: float) -> str:
        """Mean, interval and corrected p."""
        mean = sum(self.by_seed) / len(self.by_seed)
        half = half_interval(self.by_seed)
        form = MEASURES[self.measure].format
        p = f"p {corrected:.3f}" if corrected >= 0.001 else "p < 0.001"
        return f"{form(mean)} ({form(mean - half)} to {form(mean + half)}), {p}"


def differences_of(runs: pd.DataFrame) -> Iterator[Difference]:
    """All comparisons: the worlds', and the mean over the worlds of the seeds that all have."""
    for test, comparisons in enumerate(TESTS):
        for name, (first, second) in comparisons.items():
            change = (first.runs(runs) - second.runs(runs)).dropna()
            for measure in MEASURES:
                by_world = change[measure].unstack("world")
                for world in by_world:
                    values = by_world[world].dropna().tolist()
                    yield Difference(test, name, str(world), measure, values)
                means = by_world.dropna().mean(axis=1).tolist()
                yield Difference(test, name, ALL_WORLDS, measure, means)


def corrected(differences: list[Difference]) -> dict[int, float]:
    """Holm's p of each difference, by its place."""
    found: dict[int, float] = {}
    p_values = {i: p_value(one.by_seed) for i, one in enumerate(differences)}
    for kind in {difference.kind for difference in differences}:
        found |= holm({i: p for i, p in p_values.items() if differences[i].kind == kind})
    return found


def test_table(runs: pd.DataFrame) -> str:
    """A row a comparison and world, a column a measure."""
    differences = list(differences_of(runs))
    p_values = corrected(differences)
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for i, difference in enumerate(differences):
        row = rows.setdefault((difference.comparison, difference.world), {})
        row["seeds"] = str(len(difference.by_seed))
        row[difference.measure] = difference.shown(p_values[i])
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis(["comparison", "world"])
    return str(table.reset_index().to_markdown(index=False))


def stack_runs(folder: Path, arms: str = "*") -> pd.DataFrame:
    """The runs of the whole stack, from files WORLD-ARM-THETA-K-SEED.jsonl of `stack_runs.py`.

    `arms` is a pattern of their names. Here they are called `stack.NAME`.
    """
    rows = []
    for file in sorted(folder.glob(f"*-{arms}-*.jsonl")):
        world, label, theta, _, seed = file.stem.split("-")
        arm, _, gamma = label.partition("+gamma")
        steps, rate = TRAININGS[world]
        settings = (world, f"stack.{arm}", float(gamma or 1), float(theta), int(seed), steps, rate)
        *training, held_out = read_rows(file)
        row = {**dict(zip(SETTINGS, settings, strict=True)), **held_out}
        if training:
            row["log redundant"] = log_redundant(training)
        rows.append(row)
    return pd.DataFrame(rows).reindex(columns=KEPT)


def agreement_table(runs: pd.DataFrame) -> str:
    """A row an arm of the whole stack, beside the loop's runs."""
    of_stack = runs.arm.str.startswith(STACK)
    stack = runs[of_stack].assign(arm=runs.arm.str.removeprefix(STACK))
    return agreement(stack, runs[~of_stack], SETTINGS[:4])


def fronts(runs: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds by world, arm, gamma and strength: theta, or the limit of GRPO's responses.

    A limit's name is its rank in its world, because worlds have limits of their own.
    """
    limits = runs.arm.str.extract(LIMIT, expand=False).astype(float)
    ranks = limits.groupby(runs.world).rank("dense", ascending=False)
    named = runs.assign(strength=limits.fillna(runs.theta))
    named["arm"] = runs.arm.where(ranks.isna(), "grpo, limit " + ranks.map("{:.0f}".format))
    grouped = named.groupby(["arm", "gamma", "strength", "world"])
    means = grouped[["accuracy", "redundant", "tokens"]].mean()
    means["seeds"] = grouped.size()
    return means.reset_index()


def fronts_table(runs: pd.DataFrame) -> str:
    """A row an arm and strength, a column a world: accuracy, redundant lines, tokens, seeds."""
    means = fronts(runs)
    of_limits = means.arm.str.startswith("grpo")
    means["theta"] = means.strength.map("{:g}".format).mask(of_limits, "")
    means["cell"] = [
        f"{row.accuracy:.1%}, {row.redundant:.2f}, {row.tokens:.1f} ({row.seeds})"
        for row in means.itertuples()
    ]
    table = means.pivot(index=["arm", "gamma", "theta"], columns="world", values="cell").fillna("")
    return str(table.reset_index().to_markdown(index=False, floatfmt="g"))


def draw_fronts(runs: pd.DataFrame, path: Path) -> None:
    """Accuracy above tokens, a panel a world, a line an arm and gamma, a point a strength."""
    import matplotlib.pyplot as plt

    means = fronts(runs)
    means["line"] = means.arm.str.partition(",")[0] + means.gamma.map(", gamma {:g}".format)
    colors = {line: f"C{number}" for number, line in enumerate(means.line.unique())}
    worlds = sorted(means.world.unique())
    figure, panels = plt.subplots(1, len(worlds), figsize=(14, 4), layout="constrained")
    for panel, world in zip(panels, worlds, strict=True):
        for line, front in means[means.world == world].groupby("line"):
            front = front.sort_values("strength")
            accuracy = 100 * front.accuracy
            panel.plot(front.tokens, accuracy, color=colors[line], marker="o", label=line)
            for point in front.itertuples():
                panel.annotate(f"{point.strength:g}", (point.tokens, 100 * point.accuracy))
        panel.set_title(world)
        panel.set_xlabel("tokens a response")
    panels[0].set_ylabel("accuracy, %")
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4)
    save_svg(figure, path)


def means_table(runs: pd.DataFrame) -> str:
    """A row a world, arm, gamma and theta: means over the seeds."""
    grouped = runs.groupby(SETTINGS[:4])
    means = grouped[[*MEASURES, "essential"]].mean()
    means.insert(0, "seeds", grouped.size())
    return str(means.reset_index().to_markdown(index=False, floatfmt=".3g"))


def kept_runs(path: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Add runs to a CSV, in the place of those with the same settings; returns all of them."""
    runs = runs.round(5)
    if path.exists():
        runs = pd.concat([pd.read_csv(path), runs])
    runs = runs.drop_duplicates(SETTINGS, keep="last").sort_values(SETTINGS)
    runs.to_csv(path, index=False)
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="runs.jsonl of loop_runs.py")
    parser.add_argument("--stack", type=Path, help="folder of stack_runs.py")
    parser.add_argument("--keep", type=Path, help="add the runs to this CSV")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a CSV that was kept")
    parser.add_argument("--seeds", type=int, nargs="+", help="leave all others out")
    parser.add_argument("--test", action="store_true", help="print the comparisons")
    parser.add_argument("--agreement", action="store_true", help="compare the stack with the loop")
    parser.add_argument("--fronts", action="store_true", help="print a column a world")
    parser.add_argument("--picture", type=Path, help="draw the fronts into this file")
    args = parser.parse_args()
    if args.runs:
        runs = pd.read_json(args.runs, lines=True, precise_float=True, convert_dates=False)
        runs = runs.reindex(columns=KEPT)
    elif args.stack:
        runs = stack_runs(args.stack)
    else:
        runs = pd.read_csv(args.results)
    if args.keep:
        runs = kept_runs(args.keep, runs)
    if args.seeds:
        runs = runs[runs.seed.isin(args.seeds)]
    if args.picture:
        draw_fronts(runs, args.picture)
    if args.test:
        print(test_table(runs))
    elif args.agreement:
        print(agreement_table(runs))
    elif args.fronts:
        print(fronts_table(runs))
    else:
        print(means_table(runs))


if __name__ == "__main__":
    main()
