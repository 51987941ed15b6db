"""The test at three budgets: its rule, its statistics and its trainings, by hand and by SciPy."""

import json
import math
from collections import Counter

import pandas as pd
import pytest

from openrlhf_swap.errors import ConfigError
from studies.comparison.paired import equivalence_p, holm
from studies.credit import budget_results as results
from studies.credit.budget_design import ARMS, PARTS, TASKS, TEST_SEEDS, Choice, Gate, Run, phases
from studies.tests.tables import cells_of, corrected_by_hand


def a_row(task, arm, strength, seed, accuracy, tokens, budget=1024):
    row = {"task": task, "arm": arm, "strength": strength, "budget": budget, "seed": seed}
    for part in PARTS:
        row[f"{part} accuracy"] = accuracy
        row[f"{part} tokens"] = tokens
        row[f"{part} needed tokens"] = 20.0
    return row


# Arm and strength -> accuracy and tokens of each seed of the choice.
SEEN = {
    ("grpo", "-"): (0.80, 90),
    ("own", "1"): (0.85, 60),
    ("own", "2"): (0.79, 50),  # within a point
    ("own", "4"): (0.78, 40),  # shorter, and not
    ("needed", "0.5"): (0.70, 30),
    ("needed", "1"): (0.75, 44),  # none is within a point: the most accurate
    ("needed", "2"): (0.60, 20),
    ("outcome_only", "0.3"): (0.82, 70),
    ("outcome_only", "1"): (0.80, 62),
    ("outcome_only", "3"): (0.60, 35),
    ("laser_d", "-"): (0.81, 55),
}


def of_choice(task):
    rows = []
    for (arm, strength), (accuracy, tokens) in SEEN.items():
        for seed, change in ((1, -0.02), (2, 0), (3, 0.02)):
            rows.append(a_row(task, arm, strength, seed, accuracy + change, tokens + 100 * change))
    return rows


def test_the_rule_takes_the_shortest_within_a_point_of_grpo():
    others = [a_row("words", "own", "4", 1, 1.0, 1.0, budget=3072)]
    others += [a_row("words", "own", "4", 401, 1.0, 1.0), a_row("chains", "own", "4", 1, 1.0, 1.0)]
    choice = Choice(pd.DataFrame([*of_choice("words"), *others]), "words", 1024)
    assert {arm: choice.strength(arm) for arm, _ in SEEN} == {
        "grpo": "-",
        "own": "2",
        "needed": "1",
        "outcome_only": "1",
        "laser_d": "-",
    }
    assert choice.better(("own", "needed")) == "own"
    assert choice.better(("outcome_only", "laser_d")) == "laser_d"
    assert choice.better(("needed",)) == "needed"


def test_every_strength_is_tried_and_the_primary_arms_come_first():
    runs = [run for phase in phases() for run in phase.choice_runs()]
    strengths = sum(map(len, ARMS.values()))
    # Half of the test's seeds has every phase twice, with the same choice.
    assert len(runs) == 2 * len(set(runs)) == 2 * strengths * 3 * 3 * len(TASKS)
    first, *others = phases()
    assert list(first.grpo_runs()) == [Run(first.task, "grpo", "-", 1024, s) for s in (1, 2, 3)]
    chosen = [run for run in first.test_runs(pd.DataFrame(of_choice(first.task)))]
    assert chosen[:5] == [
        Run(first.task, "grpo", "-", 1024, 401),
        Run(first.task, "outcome_only", "1", 1024, 401),
        Run(first.task, "laser_d", "-", 1024, 401),
        Run(first.task, "own", "2", 1024, 401),
        Run(first.task, "needed", "1", 1024, 401),
    ]
    assert Counter(run.seed for run in chosen) == dict.fromkeys(range(401, 407), 5)
    again = next(phase for phase in others if phase.seeds != first.seeds)
    assert (again.arms, again.task, again.budget) == (first.arms, first.task, first.budget)
    assert again.seeds == tuple(range(407, 413))


@pytest.mark.parametrize(("accuracy", "passes"), [(0.80, True), (0.81, False)])
def test_the_gate_compares_grpo_with_the_base(accuracy, passes):
    base = a_row("words", "base", "-", 0, accuracy, 100, budget=0)
    others = [a_row("words", "grpo", "-", 401, 0.1, 9.0), a_row("words", "own", "2", 1, 0.1, 9.0)]
    runs = pd.DataFrame([base, *of_choice("words"), *others, *of_choice("chains")])
    gate = Gate(runs, "words")
    assert (gate.base, gate.seeds, gate.passes) == (accuracy, 3, passes)
    assert gate.grpo == pytest.approx(0.80)
    _, row = cells_of(results.gate_table(runs[runs.task == "words"]))
    assert row == ["words", f"{accuracy:.1%}", "80.0%", "3", "yes" if passes else "no"]


def test_nothing_is_chosen_from_an_unfinished_choice():
    runs = runs_of_two_tasks()
    is_last = (runs.task == "words") & (runs.arm == "own") & (runs.strength == "4")
    runs = runs[~(is_last & (runs.seed == 3))]
    cells = {(cell.comparison, cell.place) for cell in results.cells_of(runs)}
    assert cells == {("stepwise less outcome", "chains")}
    rows = {(row[0], row[2]): row[3:] for row in cells_of(results.choice_table(runs))[1:]}
    assert rows["words", "own"] == [
        "1: 85.0%, 60.0, seeds 3 of 3",
        "2: 79.0%, 50.0, seeds 3 of 3",
        "4: 77.0%, 39.0, seeds 2 of 3",
    ]
    assert rows["words", "needed"][1] == "**1: 75.0%, 44.0**"
    tested = [row[2] for row in cells_of(results.arms_table(runs))[1:] if row[0] == "words"]
    assert tested == ["laser_d -", "needed 1"]


def test_a_choice_whose_test_is_to_come_makes_all_tables():
    runs = pd.DataFrame(of_choice("words"))
    assert results.cells_of(runs) == []
    report = results.report_of(runs)
    assert "**2: 79.0%, 50.0**" in report
    assert "over all 0 p" in report


def test_equivalence_by_hand():
    # One degree of freedom is Cauchy's: the mean 2 is 3 errors below the margin 5.
    assert equivalence_p([1.0, 3.0], 5.0) == pytest.approx(0.5 - math.atan(3) / math.pi)
    assert equivalence_p([-1.0, -3.0], 1.0) == pytest.approx(0.5 + math.atan(1) / math.pi)
    assert equivalence_p([2.0, 2.0], 3.0) == 0.0 < equivalence_p([2.0, 2.0], 2.0) == 1.0


@pytest.mark.parametrize("margin", [0.5, 1.5, 3.0])
def test_equivalence_by_scipy(stats, margin):
    values = [0.3, -1.2, 2.2, 1.1, 0.4, -0.9, 1.8]
    below = stats.ttest_1samp(values, margin, alternative="less").pvalue
    above = stats.ttest_1samp(values, -margin, alternative="greater").pvalue
    assert equivalence_p(values, margin) == pytest.approx(max(below, above))


def trained(task, arm, strength, accuracies, tokens):
    seeds = TEST_SEEDS[: len(accuracies)]
    pairs = zip(seeds, accuracies, tokens, strict=True)
    return [a_row(task, arm, strength, *pair) for pair in pairs]


def runs_of_two_tasks():
    rows = [*of_choice("words"), *of_choice("chains")]
    # The fifth seed of words has needed at a strength that is not chosen, so it does not count.
    rows.append(a_row("words", "needed", "0.5", TEST_SEEDS[4], 0.90, 10))
    rows += trained("words", "own", "2", [0.80, 0.84, 0.81, 0.83, 0.10], [40, 42, 41, 40, 99])
    rows += trained("words", "laser_d", "-", [0.70, 0.75, 0.72, 0.71, 0.90], [40, 42, 41, 41, 10])
    rows += trained("words", "needed", "1", [0.80, 0.83, 0.79, 0.82], [40, 42, 43, 44])
    rows += trained("chains", "own", "2", [0.80, 0.80, 0.81], [50, 51, 49])
    rows += trained("chains", "laser_d", "-", [0.80, 0.81, 0.80], [60, 61, 62])
    return pd.DataFrame(rows)


def test_the_comparisons_are_paired_tests_with_one_correction_over_all(stats):
    runs = runs_of_two_tasks()
    accuracy = {"words": [10, 9, 9, 12], "chains": [0, -1, 1]}
    logs = {
        "words": [0, 0, 0, math.log(40 / 41)],
        "chains": [math.log(50 / 60), math.log(51 / 61), math.log(49 / 62)],
    }
    cells = {(cell.comparison, cell.place): cell for cell in results.cells_of(runs)}
    assert list(cells) == [
        ("stepwise less outcome", "chains"),
        ("stepwise less outcome", "words"),
        ("stepwise less outcome", results.MEAN),
        ("stepwise less outcome", results.UNITS),
        ("needed less own", "words"),
    ]
    for task in accuracy:
        cell = cells["stepwise less outcome", task]
        assert cell.accuracy == pytest.approx(accuracy[task])
        assert cell.tokens == pytest.approx(logs[task])
    mean = cells["stepwise less outcome", results.MEAN]
    assert mean.accuracy == pytest.approx([5, 4, 5])  # of the seeds that both tasks have
    units = cells["stepwise less outcome", results.UNITS]
    assert units.accuracy == pytest.approx([0, 10])

    p_values = holm(results.p_values_of(list(cells.values())))
    expected = {}
    for i, cell in enumerate(cells.values()):
        if cell.place != results.UNITS:
            expected[i, "accuracy"] = stats.ttest_1samp(cell.accuracy, 0).pvalue
            expected[i, "tokens"] = stats.ttest_1samp(cell.tokens, 0).pvalue
    assert p_values == pytest.approx(corrected_by_hand(expected))
    assert len(p_values) == 8


@pytest.mark.parametrize(
    ("accuracy", "tokens", "p_accuracy", "p_tokens", "verdict"),
    [
        ([4, 4.1, 3.9], [0.0, 0.01, 0.0], 0.01, 1.0, "the first is worth having"),
        ([4, 4.1, 3.9], [0.0, 0.01, 0.0], 0.06, 1.0, "open"),  # not significant
        ([4, 4.1, 3.9], [0.05, 0.06, 0.05], 0.01, 0.01, "open"),  # and longer
        ([-0.5, -0.6, -0.4], [-0.2, -0.21, -0.2], 0.5, 0.01, "the first is worth having"),
        ([-1.5, -1.6, -1.4], [-0.2, -0.21, -0.2], 0.5, 0.01, "open"),  # loses over a point
        ([0.5, 0.6, 0.4], [0.2, 0.21, 0.2], 0.5, 0.01, "the second is worth having"),
        ([0.5, 0.6, 0.4], [0.02, 0.01, 0.02], 0.5, 0.01, "equal"),
        ([9.0, -9.0, 0.0], [0.02, 0.01, 0.02], 1.0, 0.01, "open"),  # too wide
    ],
)
def test_verdicts_by_hand(accuracy, tokens, p_accuracy, p_tokens, verdict):
    cell = results.Cell("", 1024, "words", accuracy, tokens)
    assert cell.verdict(p_accuracy, p_tokens) == verdict


def test_the_comparisons_in_short_mark_what_is_worth_having():
    shown = cells_of(results.verdicts_table(runs_of_two_tasks()))
    chains, words, mean = "**+0.0, -18.0%** (3)", "**+10.0, -0.6%** (4)", "**+4.7, -9.5%** (3)"
    assert shown == [
        ["comparison", "responses", *TASKS, results.MEAN],
        ["stepwise less outcome", "1,024", chains, words, "", mean],
        ["needed less own", "1,024", "", "= -1.0, +3.6% (4)", "", ""],
    ]


def test_comparisons_that_were_not_predicted_are_not_corrected(stats):
    rows = [*of_choice("words"), *trained("words", "own", "2", [0.80, 0.84, 0.82], [40, 42, 41])]
    rows += [
        a_row("words", "limit", s, seed, 0.85, 60) for s in ARMS["limit"] for seed in (1, 2, 3)
    ]
    rows += trained("words", "limit", "p50", [0.70, 0.75, 0.77], [50, 50, 50])
    rows += trained("words", "laser_d", "-", [0.70, 0.75, 0.72], [40, 42, 41])
    rows += trained("words", "needed", "1", [0.80, 0.83, 0.79], [40, 42, 43])
    _, own, limit = cells_of(results.not_predicted_table(pd.DataFrame(rows)))
    p_accuracy = stats.ttest_1samp([10, 9, 5], 0).pvalue
    p_tokens = stats.ttest_1samp([math.log(tokens / 50) for tokens in (40, 42, 41)], 0).pvalue
    assert own[:4] == ["own less limit", "1024", "words", "3"]
    assert own[4].startswith("+8.0 (") and own[4].endswith(f"p {p_accuracy:.3f}")
    assert own[5].startswith("-18.0% (") and own[5].endswith(f"p {p_tokens:.3f}")
    assert limit[:4] == ["limit less outcome", "1024", "words", "3"]
    assert limit[4].startswith("+1.7 (")


def test_kept_runs_are_replaced_by_their_keys_and_make_all_tables(tmp_path):
    pytest.importorskip("matplotlib", reason="pip install -r studies/requirements.txt")
    path = tmp_path / "budgets.csv.gz"
    runs = runs_of_two_tasks()
    results.keep(path, runs)
    once = path.read_bytes()
    results.keep(path, runs[runs.task == "words"])
    assert path.read_bytes() == once
    kept = results.read_kept(path)
    assert results.comparison_table(kept) == results.comparison_table(runs.round(5))
    table = cells_of(results.arms_table(kept))
    row = dict(zip(table[0], next(row for row in table if row[2] == "own 2"), strict=True))
    assert row == {
        "task": "chains",
        "budget": "1024",
        "arm": "own 2",
        "seeds": "3",
        **dict.fromkeys(PARTS, "80.3%, 2.50"),
    }
    by_budget = cells_of(results.hard_table(kept))
    assert by_budget[0] == ["task", "arm", "1,024 responses"]
    assert ["chains", "own", "2: 80.3%, 2.50"] in by_budget
    assert results.report_of(kept).count("Holm's correction is over all 8 p of this table.") == 1
    results.draw_fronts(kept, tmp_path / "fronts.svg")
    assert (tmp_path / "fronts.svg").read_text(encoding="utf-8").count("1,024 responses") == 2


LIMITS = {"p50": 60, "p75": 80, "p90": 110}


def test_a_stopped_test_goes_on_with_what_has_no_line(tmp_path):
    from studies.credit import budgets

    file = tmp_path / "runs.jsonl"
    base = a_row("words", "base", "-", 0, 0.7, 70, budget=0) | LIMITS
    done = a_row("words", "own", "1", 1, 0.8, 60)
    unfinished = json.dumps(a_row("words", "own", "2", 1, 0.8, 60))[:-9]
    file.write_text(f"{json.dumps(base)}\n{json.dumps(done)}\n{unfinished}", encoding="utf-8")
    runs = [Run("words", "own", strength, 1024, 1) for strength in ("1", "2", "4")]
    assert budgets.missing(runs, file) == runs[1:]
    assert budgets.limits_of("words", file) == LIMITS


def test_kept_runs_are_not_trained_again(tmp_path):
    from studies.credit import budgets

    kept = tmp_path / "kept.csv.gz"
    base = a_row("words", "base", "-", 0, 0.7, 70, budget=0) | LIMITS
    rows = [base, a_row("words", "own", "1", 1, 0.8, 60), a_row("words", "own", "2", 1, 0.8, 60)]
    results.keep(kept, pd.DataFrame(rows))
    file = tmp_path / "runs.jsonl"
    own_line = json.dumps(rows[1] | {"all accuracy": 0.9}) + "\n"
    file.write_text(own_line, encoding="utf-8")
    budgets.take_over(kept, file)
    assert budgets.missing([Run("words", "own", s, 1024, 1) for s in ("1", "2")], file) == []
    first, *others = file.read_text(encoding="utf-8").splitlines(keepends=True)
    assert first == own_line  # which is newer
    assert [json.loads(line) for line in others] == [base, rows[2]]
    assert str(budgets.limits_of("words", file)["p50"]) == "60"
    with pytest.raises(ConfigError, match=r"--kept \S+none.csv.gz does not exist"):
        budgets.take_over(tmp_path / "none.csv.gz", file)


def test_chosen_arms_are_trained_without_the_others():
    from studies.credit import budgets

    first, last = budgets.phases_of(["chains"], [3072], ["limit", "labels"])
    assert (first.task, first.budget, first.arms) == ("chains", 3072, ("limit", "labels"))
    assert first.seeds + last.seeds == TEST_SEEDS
    assert {run.arm for run in last.choice_runs()} == {"limit", "labels"}
    # The gate compares GRPO at the least budget with the base, the rule GRPO at this one.
    grpo = Counter((run.arm, run.budget) for run in last.grpo_runs())
    assert grpo == {("grpo", 1024): 3, ("grpo", 3072): 3}


def test_a_measuring_update_comes_first_and_then_every_tenth():
    from studies.credit.budget_hours import Seconds

    assert Seconds(update=2.0, measuring=5.0).training(16) == 2 * 5.0 + 14 * 2.0
    assert Seconds(update=2.0, measuring=5.0).training(10) == 5.0 + 9 * 2.0


@pytest.mark.parametrize(
    ("arm", "strength"), [("needed", "1"), ("limit", "stages"), ("outcome_only", "3")]
)
def test_a_training_measures_the_parts_of_the_problems(monkeypatch, arm, strength):
    from studies.credit import budgets

    monkeypatch.setattr(budgets, "HELD_OUT", 12)
    run = Run("words", arm, strength, 128, 401)
    row = budgets.train_run(run, LIMITS)
    assert Run(**{name: row[name] for name in Run.__dataclass_fields__}) == run
    parts = PARTS[1:]
    loop = budgets.Loop("words")
    levels = [loop.world.level(problem.question) for problem in budgets.held_out(loop, 401)]
    counts = [
        sum(level <= 6 for level in levels),
        sum(6 < level <= 8 for level in levels),
        sum(level > 8 for level in levels),
    ]
    assert all(counts)
    for name in ("accuracy", "tokens", "needed tokens", "essential"):
        total = sum(
            count * row[f"{part} {name}"] for part, count in zip(parts, counts, strict=True)
        )
        assert total / 12 == pytest.approx(row[f"all {name}"])
    assert row["started"] and row["cpu seconds"] > 0
