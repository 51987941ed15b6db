r"""The test at three budgets from its kept file: strengths, lengths, comparisons and fronts.

    python -m studies.credit.budget_results --runs outputs/budgets/runs.jsonl \
        --keep studies/records/results/budgets.csv.gz
    python -m studies.credit.budget_results --report studies/records/results/budgets.md \
        --picture docs/pictures/budgets.svg

Everything that is printed and drawn follows from the kept file:

* The gate: GRPO is at least as accurate as the policy before any training.
* The chosen strengths: accuracy and tokens of every strength, seeds of the choice.
* The arms at their chosen strength, seeds of the test: accuracy, and tokens over needed tokens, of
  hard problems by budget, and of all, easy, middle and hard problems.
* The comparisons in the hard third, first less second of the same seed. A row of a task, and of the
  mean of the tasks that have the seed, has the seeds as its units. Beside them stands the interval
  with the tasks as units. The p are of paired t-tests, with Holm's correction over all p that are
  printed. The verdict is that of studies/records/predictions.md. Once more in short, without
  intervals.
* Comparisons that were not predicted, in the same form; their p are not corrected.
* The fronts: hard problems, a panel a task and budget, lines over the strengths (seeds of the
  choice), filled points for the test.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import pandas as pd
from tabulate import tabulate

from openrlhf_swap.files import read_rows, write_text
from studies.comparison.paired import equivalence_p, half_interval, holm, p_value
from studies.credit.budget_design import (
    ARMS,
    CHOICE_SEEDS,
    HARD,
    KEYS,
    PARTS,
    PRIMARY_ARMS,
    TASKS,
    TEST_SEEDS,
    Choice,
    Gate,
)
from studies.pictures import save_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RESULTS = Path(__file__).parents[1] / "records" / "results" / "budgets.csv.gz"
HEAD = """# The test at three budgets

What `python -m studies.credit.budget_results` prints from `budgets.csv.gz`. What follows from it:
[the evidence](../credit.md#three-budgets).
"""
MEASURES = ("accuracy", "tokens")
MEAN = "mean of the tasks"
UNITS = "the tasks as units"
MOST_STRENGTHS = max(map(len, ARMS.values()))
# A verdict's bounds, of accuracy in points and of tokens as a logarithm of their ratio.
WORTH_POINTS = 3.0
WORTH_TOKENS = math.log(0.9)
LOST_POINTS = 1.0
ALIKE_TOKENS = math.log(1.02)
EQUAL_POINTS = 3.0
EQUAL_TOKENS = -math.log(0.9)
SIGNIFICANT = 0.05
FIRST = "the first is worth having"
SECOND = "the second is worth having"
EQUAL = "equal"
OPEN = "open"
MARKS = {FIRST: "**{}**", SECOND: "*{}*", EQUAL: "= {}", OPEN: "{}"}


@dataclass(frozen=True)
class Comparison:
    """Two sets of arms; of each the seeds of the choice name the better arm."""

    name: str
    first: tuple[str, ...]
    second: tuple[str, ...]


STEPWISE = ("own", "needed")
OUTCOME = ("outcome_only", "laser_d")
SUM = ("sum_tau1", "sum_uniform")
COMPARISONS = (
    Comparison("stepwise less outcome", STEPWISE, OUTCOME),  # the primary one
    Comparison("stepwise less limit", STEPWISE, ("limit",)),
    Comparison("stepwise less sum", STEPWISE, SUM),
    Comparison("needed less own", ("needed",), ("own",)),
    Comparison("labels less stepwise", ("labels",), STEPWISE),
)
NOT_PREDICTED = (
    Comparison("own less sum", ("own",), SUM),
    Comparison("own less limit", ("own",), ("limit",)),
    Comparison("labels less own", ("labels",), ("own",)),
    Comparison("sum, tau 1, less uniform", ("sum_tau1",), ("sum_uniform",)),
    Comparison("sum less outcome", SUM, OUTCOME),
    Comparison("limit less outcome", ("limit",), OUTCOME),
)


@dataclass(frozen=True)
class Cell:
    """The differences of a comparison, first less second, in one place with one budget."""

    comparison: str
    budget: int
    place: str  # a task, MEAN or UNITS; with UNITS the differences are of tasks, not of seeds
    accuracy: list[float]  # points
    tokens: list[float]  # logarithms of the ratio

    @property
    def equal(self) -> bool:
        """Whether both differences lie within the margins of equivalence."""
        accuracy = equivalence_p(self.accuracy, EQUAL_POINTS)
        tokens = equivalence_p(self.tokens, EQUAL_TOKENS)
        return max(accuracy, tokens) < SIGNIFICANT

    def verdict(self, p_accuracy: float, p_tokens: float) -> str:
        """What the differences say, by the margins that were written down before the runs."""
        points = fmean(self.accuracy)
        tokens = fmean(self.tokens)
        if is_worth_having(points, tokens, p_accuracy, p_tokens):
            return FIRST
        if is_worth_having(-points, -tokens, p_accuracy, p_tokens):
            return SECOND
        return EQUAL if self.equal else OPEN


def is_worth_having(points: float, tokens: float, p_accuracy: float, p_tokens: float) -> bool:
    """Whether an arm with these mean differences from another is worth having over it."""
    is_accurate = points >= WORTH_POINTS and p_accuracy < SIGNIFICANT
    is_short = tokens <= WORTH_TOKENS and p_tokens < SIGNIFICANT
    return (is_accurate and tokens <= ALIKE_TOKENS) or (is_short and points >= -LOST_POINTS)


def differences(runs: pd.DataFrame, comparison: Comparison, task: str, budget: int) -> pd.DataFrame:
    """By seed of the test, the differences in the hard third; columns accuracy and tokens.

    Empty where the seeds of the choice, or the test's, are missing.
    """
    choice = Choice(runs, task, budget)
    arms = (*comparison.first, *comparison.second)
    if not all(choice.is_whole(arm) for arm in arms):
        return pd.DataFrame(columns=["accuracy", "tokens"])
    first = at_chosen(runs, choice, task, budget, choice.better(comparison.first))
    second = at_chosen(runs, choice, task, budget, choice.better(comparison.second))
    accuracy = 100 * (first[f"{HARD} accuracy"] - second[f"{HARD} accuracy"])
    tokens = (first[f"{HARD} tokens"] / second[f"{HARD} tokens"]).map(math.log)
    return pd.DataFrame({"accuracy": accuracy, "tokens": tokens}).dropna()


def at_chosen(runs: pd.DataFrame, choice: Choice, task: str, budget: int, arm: str) -> pd.DataFrame:
    """The test's runs of an arm at its chosen strength, by seed; of a primary arm, whole seeds."""
    tested = runs[(runs.task == task) & (runs.budget == budget) & runs.seed.isin(TEST_SEEDS)]
    own = of_strength(tested, choice, arm)
    if arm in PRIMARY_ARMS:
        own = own[own.seed.isin(whole_seeds(tested, choice))]
    return own.set_index("seed")


def of_strength(tested: pd.DataFrame, choice: Choice, arm: str) -> pd.DataFrame:
    """The runs of an arm that have its chosen strength."""
    return tested[(tested.arm == arm) & (tested.strength == choice.strength(arm))]


def whole_seeds(tested: pd.DataFrame, choice: Choice) -> set[int]:
    """The test's seeds that all primary arms have, but for arms whose test has not begun.

    Trainings stop by the clock, seed after seed.
    """
    seeds = set(TEST_SEEDS)
    for arm in filter(choice.is_whole, PRIMARY_ARMS):
        own = set(of_strength(tested, choice, arm).seed)
        if own:
            seeds &= own
    return seeds


def cells_of(runs: pd.DataFrame, comparisons: Sequence[Comparison] = COMPARISONS) -> list[Cell]:
    """The cells of the comparisons that have at least two seeds."""
    budgets = sorted(runs.budget[runs.budget > 0].unique())
    found: list[Cell] = []
    for comparison in comparisons:
        for budget in budgets:
            by_task = {task: differences(runs, comparison, task, budget) for task in TASKS}
            trained = {task: changes for task, changes in by_task.items() if len(changes) > 1}
            found += cells_of_tasks(comparison.name, budget, trained)
    return found


def cells_of_tasks(name: str, budget: int, by_task: Mapping[str, pd.DataFrame]) -> Iterator[Cell]:
    """A cell a task; of several also their mean, and the tasks as the units."""
    for task, changes in by_task.items():
        yield cell_of(name, budget, task, changes)
    if len(by_task) < 2:
        return
    of_all = pd.concat(by_task, axis="columns").dropna()
    means = pd.DataFrame(
        {measure: of_all.xs(measure, axis="columns", level=1).mean(axis=1) for measure in MEASURES}
    )
    if len(means) > 1:
        yield cell_of(name, budget, MEAN, means)
    of_tasks = pd.DataFrame({task: changes.mean() for task, changes in by_task.items()}).T
    yield cell_of(name, budget, UNITS, of_tasks)


def cell_of(name: str, budget: int, place: str, changes: pd.DataFrame) -> Cell:
    """The cell of differences with columns accuracy and tokens."""
    return Cell(name, budget, place, changes.accuracy.tolist(), changes.tokens.tolist())


def p_values_of(cells: Sequence[Cell]) -> dict[tuple[int, str], float]:
    """The p by the place of a cell and the measure.

    With the tasks as the units there is an interval alone.
    """
    p_values = {}
    for i, cell in enumerate(cells):
        if cell.place != UNITS:
            p_values[i, "accuracy"] = p_value(cell.accuracy)
            p_values[i, "tokens"] = p_value(cell.tokens)
    return p_values


def comparison_table(runs: pd.DataFrame) -> str:
    """A row a comparison, budget and place: differences, intervals, p and verdict.

    The line below the table counts the p of the family.
    """
    cells = cells_of(runs)
    p_values = holm(p_values_of(cells))
    rows = interval_rows(cells, p_values)
    for i, cell in enumerate(cells):
        if cell.place != UNITS:
            rows[i]["verdict"] = cell.verdict(p_values[i, "accuracy"], p_values[i, "tokens"])
    return f"{markdown(rows)}\n\nHolm's correction is over all {len(p_values)} p of this table."


def not_predicted_table(runs: pd.DataFrame) -> str:
    """Comparisons that were looked at after the runs: no correction, no verdict."""
    cells = cells_of(runs, NOT_PREDICTED)
    return markdown(interval_rows(cells, p_values_of(cells)))


def interval_rows(
    cells: Sequence[Cell], p_values: Mapping[tuple[int, str], float]
) -> list[dict[str, str]]:
    """A row a cell: its means with their intervals and p."""
    rows = []
    for i, cell in enumerate(cells):
        row = {
            "comparison": cell.comparison,
            "budget": str(cell.budget),
            "hard problems of": cell.place,
            "n": str(len(cell.accuracy)),
            "accuracy, points": with_interval(cell.accuracy, "{:+.1f}".format),
            "tokens": with_interval(cell.tokens, as_percent),
        }
        if cell.place != UNITS:
            row["accuracy, points"] += f", {shown_p(p_values[i, 'accuracy'])}"
            row["tokens"] += f", {shown_p(p_values[i, 'tokens'])}"
        rows.append(row)
    return rows


def verdicts_table(runs: pd.DataFrame) -> str:
    """The comparisons in short: a row a comparison and budget, a column a task and their mean.

    Points of accuracy and tokens, first less second, with the number of seeds. Where the first is
    worth having they are bold, where the second is, italic; behind `=` the arms are equal.
    """
    cells = cells_of(runs)
    p_values = holm(p_values_of(cells))
    rows = []
    for i, cell in enumerate(cells):
        if cell.place == UNITS:
            continue
        text = f"{fmean(cell.accuracy):+.1f}, {as_percent(fmean(cell.tokens))}"
        verdict = cell.verdict(p_values[i, "accuracy"], p_values[i, "tokens"])
        shown = f"{MARKS[verdict].format(text)} ({len(cell.accuracy)})"
        rows.append([cell.comparison, f"{cell.budget:,}", cell.place, shown])
    return pivoted(rows, ["comparison", "responses"], [*TASKS, MEAN])


def pivoted(
    cells: Sequence[Sequence[str]], row_names: Sequence[str], columns: Sequence[str]
) -> str:
    """The table of cells that each name their row, their column and their text, in this order."""
    named = pd.DataFrame(cells, columns=[*row_names, "column", "text"])
    table = named.pivot_table(
        values="text", index=list(row_names), columns="column", aggfunc="first", sort=False
    )
    return markdown(table.reindex(columns=columns, fill_value="").reset_index())


def markdown(rows: pd.DataFrame | Sequence[Mapping[str, str]]) -> str:
    """The Markdown table of rows; what a row lacks stays empty."""
    table = pd.DataFrame(rows).fillna("")
    return str(table.to_markdown(index=False, disable_numparse=True))


def with_interval(values: Sequence[float], form: Callable[[float], str]) -> str:
    """The mean and its 95% interval by Student's t."""
    mean = fmean(values)
    half = half_interval(values)
    return f"{form(mean)} ({form(mean - half)} to {form(mean + half)})"


def as_percent(logarithm: float) -> str:
    """The logarithm of a ratio as a change in percent."""
    return f"{100 * math.expm1(logarithm):+.1f}%"


def shown_p(p: float) -> str:
    return f"p {p:.3f}" if p >= 0.001 else "p < 0.001"


def gate_table(runs: pd.DataFrame) -> str:
    """A row a task: the accuracy of the base and of GRPO."""
    rows = []
    for task in TASKS:
        gate = Gate(runs, task)
        if gate.seeds:
            passes = "yes" if gate.passes else "no"
            rows.append([task, f"{gate.base:.1%}", f"{gate.grpo:.1%}", gate.seeds, passes])
    return tabulate(rows, ["task", "base", "grpo", "seeds", "passes"], "github")


def choice_table(runs: pd.DataFrame) -> str:
    """A row a task, budget and arm, a column a strength's place; the chosen one is bold.

    While a run of an arm, or of GRPO, is missing, none is chosen, and the seeds are counted.
    """
    rows = []
    for task, budget in pairs_of(runs):
        choice = Choice(runs, task, budget)
        for arm, strengths in ARMS.items():
            cells = [choice_cell(choice, arm, strength) for strength in strengths]
            if any(cells):
                rows.append([task, budget, arm, *cells])
    header = ["task", "budget", "arm", *["strength: accuracy, tokens"] * MOST_STRENGTHS]
    return tabulate(rows, header, "github", disable_numparse=True)


def choice_cell(choice: Choice, arm: str, strength: str) -> str:
    """Accuracy and tokens of a strength; empty where no seed has trained it."""
    if (arm, strength) not in choice.means.index:
        return ""
    means = choice.means.loc[(arm, strength)]
    text = f"{strength}: {means.accuracy:.1%}, {means.tokens:.1f}"
    if not choice.is_whole(arm):
        return f"{text}, seeds {choice.seeds[(arm, strength)]} of {len(CHOICE_SEEDS)}"
    return f"**{text}**" if strength == choice.strength(arm) else text


def arms_table(runs: pd.DataFrame) -> str:
    """A row a task, budget and arm: accuracy, and tokens over needed tokens, by difficulty."""
    rows = []
    for chosen in chosen_arms(runs):
        name = f"{chosen.arm} {chosen.strength}"
        shown = [shown_part(chosen.runs, part) for part in PARTS]
        rows.append([chosen.task, chosen.budget, name, len(chosen.runs), *shown])
    return tabulate(rows, ["task", "budget", "arm", "seeds", *PARTS], "github")


def hard_table(runs: pd.DataFrame) -> str:
    """A row a task and arm, a column a budget: the chosen strength, and what it does on hard ones.

    Accuracy, and tokens over needed tokens, as in the arms' table.
    """
    budgets = []
    cells = []
    for chosen in chosen_arms(runs):
        budgets.append(chosen.budget)
        shown = f"{chosen.strength}: {shown_part(chosen.runs, HARD)}"
        cells.append([chosen.task, chosen.arm, responses(chosen.budget), shown])
    columns = [responses(budget) for budget in sorted(set(budgets))]
    return pivoted(cells, ["task", "arm"], columns)


def responses(budget: int) -> str:
    return f"{budget:,} responses"


@dataclass(frozen=True)
class ChosenArm:
    """An arm at its chosen strength: the test's runs in one task with one budget."""

    task: str
    budget: int
    arm: str
    strength: str
    runs: pd.DataFrame


def chosen_arms(runs: pd.DataFrame) -> Iterator[ChosenArm]:
    """All that have seeds of the test, by task and budget."""
    for task, budget in pairs_of(runs):
        choice = Choice(runs, task, budget)
        for arm in filter(choice.is_whole, ARMS):
            own = at_chosen(runs, choice, task, budget, arm)
            if len(own):
                yield ChosenArm(task, budget, arm, choice.strength(arm), own)


def shown_part(own: pd.DataFrame, part: str) -> str:
    """Mean accuracy, and mean tokens over needed tokens, of easy, middle, hard or all problems."""
    ratio = own[f"{part} tokens"] / own[f"{part} needed tokens"]
    return f"{own[f'{part} accuracy'].mean():.1%}, {ratio.mean():.2f}"


def hours_table(runs: pd.DataFrame) -> str:
    """A row a task, and all: trainings, and their hours by the clock and of one core."""
    trained = runs[runs.budget > 0]
    by_task = {task: trained[trained.task == task] for task in TASKS} | {"all": trained}
    rows = []
    for task, own in by_task.items():
        clock, cpu = own.reindex(columns=["seconds", "cpu seconds"]).sum() / 3600
        rows.append([task, len(own), f"{clock:.1f}", f"{cpu:.1f}"])
    return tabulate(rows, ["task", "trainings", "hours", "hours of one core"], "github")


def report_of(runs: pd.DataFrame) -> str:
    """The page of all tables."""
    tables = {
        "The gate: GRPO at the least budget is as accurate as the base": gate_table,
        "The choice: accuracy and tokens of each strength, the chosen one bold": choice_table,
        "The test: accuracy, and tokens over needed tokens, by difficulty": arms_table,
        "The same on hard problems, by budget": hard_table,
        "Differences on hard problems, paired by seed, with 95% intervals": comparison_table,
        "The same in short: points of accuracy, tokens (seeds)": verdicts_table,
        "Comparisons that were not predicted, without correction": not_predicted_table,
        "Trainings": hours_table,
    }
    return HEAD + "".join(f"\n## {title}\n\n{table(runs)}\n" for title, table in tables.items())


def pairs_of(runs: pd.DataFrame) -> Iterator[tuple[str, int]]:
    """The tasks and budgets that have GRPO's seeds of the choice, which every rule needs."""
    of_choice = runs[runs.seed.isin(CHOICE_SEEDS) & (runs.arm == "grpo")]
    budgets = sorted(of_choice.budget.unique())
    for task, budget in product(TASKS, budgets):
        if ((of_choice.task == task) & (of_choice.budget == budget)).any():
            yield task, budget


def draw_fronts(runs: pd.DataFrame, path: Path) -> None:
    """Accuracy above tokens over needed tokens, of hard problems; a panel a task and budget."""
    import matplotlib.pyplot as plt
    from matplotlib.lines import Line2D

    pairs = list(pairs_of(runs))
    tasks = [task for task in TASKS if any(task == other for other, _ in pairs)]
    budgets = sorted({budget for _, budget in pairs})
    size = (4 * len(budgets), 3.2 * len(tasks))
    figure, panels = plt.subplots(
        len(tasks), len(budgets), figsize=size, layout="constrained", squeeze=False
    )
    for panel in panels.flat:
        panel.set_axis_off()  # a task may lack a budget
    for task, budget in pairs:
        panel = panels[tasks.index(task)][budgets.index(budget)]
        panel.set_axis_on()
        draw_pair(panel, runs, task, budget)
        panel.set_title(f"{task}, {responses(budget)}")
        panel.set_xlabel("tokens over needed tokens, hard problems")
        panel.set_ylabel("accuracy, %")
    trained = set(runs.arm)
    handles = []
    for i, arm in enumerate(ARMS):
        if arm in trained:
            handles.append(Line2D([], [], color=f"C{i}", marker="o", label=arm))
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    save_svg(figure, path)


def draw_pair(panel: Axes, runs: pd.DataFrame, task: str, budget: int) -> None:
    """The lines over the strengths, seeds of the choice, and filled points of the test."""
    choice = Choice(runs, task, budget)
    own = runs[(runs.task == task) & (runs.budget == budget)]
    own = own.assign(ratio=own[f"{HARD} tokens"] / own[f"{HARD} needed tokens"])
    of_choice = own[own.seed.isin(CHOICE_SEEDS)]
    for i, arm in enumerate(ARMS):
        if arm not in choice.means.index:
            continue
        means = of_choice[of_choice.arm == arm].groupby("strength")
        means = means[["ratio", f"{HARD} accuracy"]].mean().sort_values("ratio")
        panel.plot(means.ratio, 100 * means[f"{HARD} accuracy"], f"C{i}o-", fillstyle="none")
        if not choice.is_whole(arm):
            continue
        tested = at_chosen(own, choice, task, budget, arm)
        panel.plot(tested.ratio.mean(), 100 * tested[f"{HARD} accuracy"].mean(), f"C{i}o")


def read_kept(path: Path) -> pd.DataFrame:
    """The kept runs; a strength is text, as it is written."""
    return pd.read_csv(path, dtype={"strength": str})


def keep(path: Path, runs: pd.DataFrame) -> pd.DataFrame:
    """Add runs to the kept file, in the place of those with the same keys; returns all."""
    runs = runs.round(5)
    if path.exists():
        runs = pd.concat([read_kept(path), runs])
    runs = runs.drop_duplicates(KEYS, keep="last").sort_values(KEYS)
    path.parent.mkdir(parents=True, exist_ok=True)
    runs.to_csv(path, index=False, compression={"method": "gzip", "mtime": 0})
    return runs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=Path, help="runs.jsonl of budgets.py")
    parser.add_argument("--keep", type=Path, help="add the runs to this .csv.gz")
    parser.add_argument("--results", type=Path, default=RESULTS, help="a file that was kept")
    parser.add_argument("--report", type=Path, help="write the tables into this file, too")
    parser.add_argument("--picture", type=Path, help="draw the fronts into this file")
    args = parser.parse_args()
    runs = pd.DataFrame(read_rows(args.runs)) if args.runs else read_kept(args.results)
    if args.keep:
        runs = keep(args.keep, runs)
    report = report_of(runs)
    print(report)
    if args.report:
        write_text(args.report, report)
    if args.picture:
        draw_fronts(runs, args.picture)


if __name__ == "__main__":
    main()
