"""The tables of the loop's trainings, recomputed by pandas and SciPy from the kept runs."""

import json
import math
import re

import pandas as pd
import pytest
from loop_results import MAP, MEASURES, by_run, differences, read_runs
from support.paths import STUDIES
from support.tables import corrected_by_hand, tables_in

RESULTS = STUDIES / "results" / "loop.csv.gz"
PAGE = "method/comparison.md"


def test_runs_are_read_and_those_that_have_not_ended_left_out(tmp_path):
    numbers = {"accuracy": 0.5, "tokens": 10.0, "essential": 2.0, "redundant": 0.95}
    steps = [{"step": 0, **numbers, "price": 1.0}, {"step": 1, **numbers, "redundant": 0.0}]
    ended = [*steps, {"step": None, **numbers, "accuracy": 0.75}]
    for name, rows in (
        ("words-weights.oracle-0.3-25-7", ended),
        ("words-weights.oracle-0.3-25-8", steps),
    ):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = by_run(read_runs(tmp_path))
    assert runs[["world", "arm", "theta", "max_steps", "seed"]].to_numpy().tolist() == [
        ["words", "weights.oracle", 0.3, 25, 7]
    ]
    assert runs.accuracy.item() == 0.75
    assert runs["log redundant"].item() == pytest.approx(math.log(0.05) / 2)  # ln 1 and ln .05


def measures_of_runs(path):
    """A row a run, by pandas alone."""
    frame = pd.read_csv(path)
    key = ["world", "arm", "theta", "max_steps", "seed"]
    steps = frame[frame.step.notna()].assign(
        logs=lambda rows: (rows.redundant + 0.05).map(math.log)
    )
    ends = frame[frame.step.isna()].set_index(key)[["redundant", "accuracy", "tokens"]]
    return ends.join(steps.groupby(key).logs.mean().rename("log redundant")).reset_index()


def numbers_in(text):
    return [float(number) for number in re.findall(r"[-+]?\d*\.\d+", text)]


def places(name):
    return 0.51 * 10 ** -int(re.search(r"\.(\d+)f", MEASURES[name])[1])


@pytest.mark.parametrize(
    ("number", "world", "seeds"),
    [
        (0, "columns", range(101, 113)),
        (1, "addition", range(201, 213)),
        (2, "addition", range(1, 4)),
    ],
)
def test_the_tests_in_the_docs_are_what_pandas_and_scipy_make_of_the_kept_runs(
    stats, number, world, seeds
):
    runs = measures_of_runs(RESULTS)
    runs = runs[(runs.world == world) & runs.seed.isin(seeds) & (runs.max_steps == 25)]
    _, *rows = tables_in(PAGE, "arm | less | theta")[number]
    for column, name in enumerate(MEASURES):
        tests = {}
        for first, second, theta, count, *_ in rows:
            pair = runs[runs.theta == float(theta)].pivot_table(name, index="seed", columns="arm")[
                [first, second]
            ]
            assert len(pair.dropna()) == int(count) == len(seeds)
            tests[first, second] = stats.ttest_rel(pair[first], pair[second])
        corrected = corrected_by_hand({key: test.pvalue for key, test in tests.items()})
        for first, second, _, _, *cells in rows:
            interval = tests[first, second].confidence_interval()
            expected = ((interval.low + interval.high) / 2, interval.low, interval.high)
            mean, low, high, p = numbers_in(cells[column])
            assert (mean, low, high) == pytest.approx(expected, abs=places(name))
            expected_p = corrected[first, second]
            assert expected_p < 0.001 if "<" in cells[column] else abs(p - expected_p) < 0.00051


def test_the_map_in_the_docs_is_what_pandas_makes_of_the_kept_runs():
    runs = measures_of_runs(RESULTS)
    runs = runs[runs.seed <= 3]
    header, *rows = tables_in(PAGE, "the price paid by, which")[0]
    seen = 0
    for name, *cells in rows:
        for setting, cell in zip(header[1:], cells, strict=True):
            world, theta, max_steps = re.fullmatch(
                r"(\w+), theta ([\d.]+), K (\d+)", setting
            ).groups()
            own = runs[
                (runs.world == world)
                & (runs.theta == float(theta))
                & (runs.max_steps == int(max_steps))
            ]
            own = [own[own.arm == arm] for arm in MAP[name] if arm in set(own.arm)]
            assert bool(own) == bool(cell)
            if cell:
                redundant, accuracy, count = re.fullmatch(
                    r"([\d.]+), (\d+)% \((\d)\)", cell
                ).groups()
                assert float(redundant) == pytest.approx(own[0].redundant.mean(), abs=0.0051)
                assert int(accuracy) == pytest.approx(100 * own[0].accuracy.mean(), abs=0.51)
                assert int(count) == len(own[0])
                seen += 1
    assert seen > 35


def test_the_stack_in_the_docs_is_what_pandas_and_scipy_make_of_the_kept_runs(stats):
    loop, stack = map(measures_of_runs, (RESULTS, RESULTS.with_name("stack.csv")))
    loop = loop[(loop.world == "columns") & (loop.seed > 100)]
    _, *rows, pooled = tables_in(PAGE, "arm of the stack")[0]
    assert {row[0] for row in rows} == set(stack.arm)
    for column, name in enumerate(MEASURES, 1):
        for arm, *cells in rows:
            own, of_loop = (runs[runs.arm == arm].set_index("seed")[name] for runs in (stack, loop))
            assert len(of_loop) == 12
            half = stats.t.ppf(0.975, 11) * of_loop.std() * math.sqrt(1 + 1 / 12)
            low, high = of_loop.mean() - half, of_loop.mean() + half
            expected = (own.mean(), of_loop[own.index].mean(), low, high)
            text, inside = cells[column - 1].rsplit("; ", 1)
            assert numbers_in(text) == pytest.approx(expected, abs=places(name))
            assert inside == f"{((own >= low) & (own <= high)).sum()} of {len(own)}"
        both = [runs.pivot_table(name, index="seed", columns="arm") for runs in (stack, loop)]
        change = (both[0] - both[1]).dropna(axis="columns", how="all").dropna().mean(axis=1)
        interval = stats.ttest_1samp(change, 0).confidence_interval()
        expected = (change.mean(), interval.low, interval.high)
        assert numbers_in(pooled[column]) == pytest.approx(expected, abs=places(name))


def test_treatments_in_the_docs_are_the_kept_ones_and_bold_from_the_gate_on():
    kept = pd.read_csv(RESULTS.with_name("treatments.csv")).set_index(
        ["world", "floor", "max_steps", "price"]
    )
    columns = ["tau1", "0.25sd", "mono0.25sd", "shuffled", "oracle", "anti", "oracle_against_anti"]
    _, *rows = tables_in(PAGE, "world | price | tau 1")[0]
    assert len(rows) == 10
    for world, price, *cells in rows:
        key = world.partition(",")[0], "yes" if "step_noise" in world else "no"
        expected = [kept.loc[(*key, 25, price), column] for column in columns]
        if cells[-1]:
            expected.append(kept.loc[(*key, 6, price), "oracle_against_anti"])
        assert [float(cell.strip("*")) for cell in cells if cell] == expected
        assert [cell.startswith("**") for cell in cells[6:] if cell] == [
            value >= 0.25 for value in expected[6:]
        ]


def test_a_difference_by_hand():
    names = ("arm", "seed", "log redundant", "redundant")
    rows = [("a", 1, 2.5, 1.0), ("a", 2, 3.0, 1.0), ("b", 1, 4.0, 3.0), ("b", 2, 5.0, 3.0)]
    text = differences(
        pd.DataFrame(rows, columns=names).assign(theta=1.0, accuracy=0.5, tokens=1.0), ["a/b@1"]
    )
    # -1.5 and -2: mean -1.75, half an interval of 12.71 * .3536/sqrt(2).
    assert (
        "-1.75 (-4.93 to +1.43), p 0.090" in text and "+0.000 (+0.000 to +0.000), p 1.000" in text
    )
