"""The kept results of the studies: the tables of the pages, recomputed by pandas and SciPy."""

import math
import re
from itertools import chain, product

import pandas as pd
import pytest
from support.paths import ROOT

from openrlhf_swap.files import read_rows
from studies.comparison import fronts
from studies.comparison.front_points import Ideal, of_methods, read_kept
from studies.comparison.paired import half_interval, holm, p_value
from studies.credit import budget_results
from studies.credit import who_pays as credit
from studies.credit.loop_results import MEASURES, by_run
from studies.smollm2 import what_going_on_costs
from studies.tests.tables import cells_of, corrected_by_hand, tables_in

RECORDS = ROOT / "studies" / "records"
RESULTS = RECORDS / "results"
COMPARISON = RECORDS / "comparison.md"


def numbers_in(text):
    return [float(number) for number in re.findall(r"[-+]?\d*\.\d+", text)]


def places(name):
    return 0.51 * 10 ** -int(re.search(r"\.(\d+)f", MEASURES[name])[1])


def test_the_tests_by_hand():
    # One degree of freedom is Cauchy's: differences 1 and 3 have t = 2, and p = 1 - 2/pi atan(2).
    assert p_value([1.0, 3.0]) == pytest.approx(1 - 2 / math.pi * math.atan(2))
    assert half_interval([1.0, 3.0]) == pytest.approx(math.tan(0.475 * math.pi))
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert corrected == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})


SEEDS = (("columns", range(101, 113)), ("addition", range(201, 213)), ("addition", range(1, 4)))


@pytest.mark.parametrize(("number", "world", "seeds"), [(n, *of) for n, of in enumerate(SEEDS)])
def test_the_paired_tests_of_the_loop(stats, number, world, seeds):
    runs = by_run(pd.read_csv(RESULTS / "loop.csv.gz"))
    runs = runs[(runs.world == world) & runs.seed.isin(seeds) & (runs.max_steps == 25)]
    _, *rows = tables_in(COMPARISON, "arm | less | theta")[number]
    for column, name in enumerate(MEASURES):
        tests = {}
        for first, second, theta, count, *_ in rows:
            own = runs[runs.theta == float(theta)]
            pair = own.pivot_table(name, index="seed", columns="arm")[[first, second]]
            assert len(pair.dropna()) == int(count) == len(seeds)
            tests[first, second] = stats.ttest_rel(pair[first], pair[second])
        corrected = corrected_by_hand({key: test.pvalue for key, test in tests.items()})
        for first, second, _, _, *cells in rows:
            interval = tests[first, second].confidence_interval()
            expected = ((interval.low + interval.high) / 2, interval.low, interval.high)
            *shown, p = numbers_in(cells[column])
            assert shown == pytest.approx(expected, abs=places(name))
            exact = corrected[first, second]
            assert exact < 0.001 if "<" in cells[column] else abs(p - exact) < 0.00051


def test_who_pays_for_a_step(stats):
    runs = pd.read_csv(RESULTS / "credit.csv")
    runs = runs[runs.seed > 300]
    (table,) = tables_in(RECORDS / "credit.md", "comparison | world | seeds")
    worlds = sorted(runs.world.unique())
    for column, (name, form) in enumerate(credit.MEASURES.items()):
        by_arm = runs.pivot_table(name, ["arm", "gamma", "theta", "seed"], "world")
        of_worlds = {}
        of_means = {}
        seeds_of = {}
        for comparison, arms in chain.from_iterable(test.items() for test in credit.TESTS):
            values = (by_arm.loc[arm.name, arm.gamma, arm.theta] for arm in arms)
            first, second = pd.DataFrame.align(*values, join="inner", axis=0)
            seeds_of[comparison] = len(first)
            for world in worlds:
                of_worlds[comparison, world] = stats.ttest_rel(first[world], second[world])
            means = stats.ttest_rel(first.mean(axis=1), second.mean(axis=1))
            of_means[comparison, credit.ALL_WORLDS] = means
        corrected = {}
        for tests, names in product((of_worlds, of_means), credit.TESTS):
            p_values = {key: test.pvalue for key, test in tests.items() if key[0] in names}
            corrected |= corrected_by_hand(p_values)
        for comparison, world, seeds, *cells in table[1:]:
            assert int(seeds) == seeds_of[comparison]
            key = comparison, world
            interval = {**of_worlds, **of_means}[key].confidence_interval()
            expected = ((interval.low + interval.high) / 2, interval.low, interval.high)
            *shown, p = numbers_in(cells[column])
            digits = int(re.search(r"\.(\d+)f", form)[1])
            assert shown == pytest.approx(expected, abs=0.51 * 10**-digits)
            if "<" in cells[column]:
                assert corrected[key] < 0.001
            else:
                assert p == pytest.approx(corrected[key], abs=0.00051)


def test_the_stack_and_the_fronts_are_those_that_are_shown():
    runs = pd.read_csv(RESULTS / "credit.csv")
    stack = (RESULTS / "credit_stack.md").read_text(encoding="utf-8")
    assert credit.agreement_table(runs[runs.seed > 300]) in stack
    shown = (RESULTS / "fronts.md").read_text(encoding="utf-8")
    assert credit.fronts_table(runs[runs.seed < 20]) in shown


def test_the_fronts_of_words_are_those_that_are_shown():
    points = read_kept(RESULTS / "fronts_words.csv.gz")
    base = points[0]
    ideal = Ideal(98.6, 38.5, base)
    points = [point for point in points if point is base or point.seed in range(1, 6)]
    (areas,) = tables_in(COMPARISON, "method | seeds | strengths")
    methods = [row[0] for row in areas[1:]]
    assert cells_of(fronts.table(of_methods(points, methods), ideal, "swap")) == areas
    tables = tables_in(COMPARISON, "configuration | seeds")
    assert len(tables) == 3
    for table in tables:
        names = [row[0] for row in table[1:]]
        names.sort(key=lambda name: name != "swap@1")
        assert cells_of(fronts.table_of_last(points, ideal, names)) == table


def test_what_going_on_costs_smollm2_is_what_its_page_shows():
    smollm2 = ROOT / "studies" / "smollm2"
    rows = list(read_rows(smollm2 / "results" / "credit" / "warm_up.scored.jsonl"))
    assert what_going_on_costs.table(rows) in (smollm2 / "README.md").read_text(encoding="utf-8")


def test_the_page_of_the_budgets_has_what_follows_from_the_kept_runs():
    """How the tables are made is tested in test_budgets.py."""
    runs = budget_results.read_kept(budget_results.RESULTS)
    page = (RECORDS / "credit.md").read_text(encoding="utf-8")
    assert budget_results.hard_table(runs) in page
    assert budget_results.verdicts_table(runs) in page
    header, *rows = cells_of(budget_results.verdicts_table(runs))
    (shown,) = tables_in(ROOT / "docs" / "what_we_found.md", "comparison ")
    assert shown == [header, *(row for row in rows if row[0].startswith("stepwise"))]
    report = budget_results.RESULTS.with_name("budgets.md").read_text(encoding="utf-8")
    assert report == budget_results.report_of(runs)


def test_what_each_method_does():
    names = {
        ("steps.uniform", 1, 0.3): "uniform_penalty",
        ("steps.uniform", 0, 2): "own_bill",
        ("reward.need.4.1", 0.5, 1): "needed",
    }
    others = pd.read_csv(RESULTS / "credit.csv").set_index(["arm", "gamma", "theta"])
    others = others.loc[list(names)]
    others["arm"] = [names[key] for key in others.index]
    runs = pd.concat([pd.read_csv(RESULTS / "methods.csv"), others])
    runs = runs[runs.seed.isin([301, 302, 303]) & runs.world.isin(["words", "columns"])]
    arms = runs.arm.str.removeprefix("objective.")
    arms = arms.str.replace(r"stack\.objective\.(.*)", r"\1 (stack)", regex=True)
    arms = arms.str.replace(r"grpo_limit.*", "grpo, limit", regex=True)
    runs = runs.assign(accuracy=100 * runs.accuracy, arm=arms)
    (table,) = tables_in(RECORDS / "methods_tried.md", "method")
    header, *rows = table
    cells = {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in rows}
    for (arm, world), of in runs.groupby(["arm", "world"]):
        assert len(of) == 3
        for measure, form in (("accuracy", ".1f"), ("tokens", ".1f"), ("redundant", ".2f")):
            mean, least, most = (format(of[measure].agg(f), form) for f in ("mean", "min", "max"))
            assert cells[arm][f"{world}: {measure}"] == f"{mean} ({least}-{most})"
    means = runs.groupby(["arm", "world"]).accuracy.mean().groupby("arm").mean()
    assert {arm: row["mean"] for arm, row in cells.items()} == {
        arm: f"{mean:.1f}" for arm, mean in means.items()
    }
    assert means[list(cells)].is_monotonic_decreasing
