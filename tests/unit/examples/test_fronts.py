"""Fronts, areas and regrets by hand; and the tables of the docs, recomputed by pandas and SciPy
from the kept runs.
"""

import math

import numpy
import pandas
import pytest
from front_points import (
    BASE,
    COST,
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
from fronts import MULTIPLES, chosen_points, table, table_of_last
from paired import half_interval, holm, p_value
from support.paths import STUDIES
from support.tables import cells_of, corrected_by_hand, tables_in

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows, write_text

START = Point(BASE, "", 0, 0, 60.0, 80.0)
IDEAL = Ideal(98.0, 40.0, START)


def made_up():
    """Points that look like runs: three methods, three strengths, four seeds, two steps."""
    points = [START]
    for m, method in enumerate(("swap", "other", "third")):
        for s, strength in enumerate(("0.1", "0.3", "1")):
            for seed in (1, 2, 3, 4):
                for step in (5, 10):
                    wave = math.sin(7 * m + 3 * s + 1.7 * seed + step)
                    accuracy, tokens = 85 + 3 * m - 4 * s + 3 * wave, 75 - 12 * s - step + 2 * wave
                    points.append(
                        Point(method, strength, seed, step, accuracy, tokens, 0.1 * s, 2.0 - s / 2)
                    )
    return points


def test_a_front_is_a_staircase():
    points = [START, Point("a", "1", 1, 5, 80.0, 50.0), Point("a", "1", 1, 10, 70.0, 60.0)]
    assert [front(points, tokens) for tokens in (49, 50, 79, 80, 99)] == [0, 80, 80, 80, 80]
    # 0 from 40 to 50, 80 from there to 80 tokens.
    assert area(points, 40, 80) == pytest.approx(80 * math.log(80 / 50) / math.log(2))
    assert area([START], 40, 80) == 0


def test_regret_by_hand():
    # 8 points below A*, and half of the base's excess length.
    assert regret(Point("a", "1", 1, 5, 90.0, 60.0), IDEAL) == pytest.approx(8 + COST / 2)
    assert regret(Point("a", "1", 1, 5, 99.0, 30.0), IDEAL) == 0


def test_a_strength_is_chosen_on_the_other_seeds():
    """Strength 1 is best on seed 1 alone; the other two seeds would not choose it for it."""
    values = {
        ("1", 1): 98.0,
        ("1", 2): 50.0,
        ("1", 3): 50.0,
        ("2", 1): 90.0,
        ("2", 2): 90.0,
        ("2", 3): 90.0,
    }
    points = [
        Point("a", strength, seed, 5, accuracy, 40.0)
        for (strength, seed), accuracy in values.items()
    ]
    chosen = chosen_points(by_seed([START, *points])["a"], IDEAL)
    assert [point.strength for point in chosen] == ["2", "2", "2"]


def test_holm_by_hand():
    corrected = holm({"a": 0.01, "b": 0.04, "c": 0.03})
    assert corrected == pytest.approx({"a": 0.03, "c": 0.06, "b": 0.06})
    assert holm({"a": 0.9, "b": 0.8})["b"] == 1.0


def test_p_values_by_hand():
    # One degree of freedom is Cauchy's: differences 1 and 3 have t = 2, and p = 1 - 2/pi atan(2).
    assert p_value([1.0, 3.0]) == pytest.approx(1 - 2 / math.pi * math.atan(2))
    assert p_value([1.0]) == 1.0 and p_value([2.0, 2.0]) == 0.0
    # And tan(0.95 pi / 2) has 95% of it within; the error of 1 and 3 is 1.
    assert half_interval([1.0, 3.0]) == pytest.approx(math.tan(0.475 * math.pi))


def test_what_is_kept_is_what_was_measured(tmp_path):
    points, path = made_up(), tmp_path / "kept.csv.gz"
    keep(path, points)
    again = read_kept(path)
    assert (
        again[1:] == points[1:]
        and again[0].accuracy == START.accuracy
        and math.isnan(again[0].missing)
    )
    first = path.read_bytes()
    keep(path, points)
    assert path.read_bytes() == first


def test_runs_are_read(tmp_path):
    write_text(
        tmp_path / "base.json", '{"accuracy": 0.6, "tokens": 80, "missing": 0.5, "redundant": 9}'
    )
    run = tmp_path / "swap@0.3" / "seed_2"
    run.mkdir(parents=True)
    write_text(run / "result.json", '{"accuracy": 0.8, "tokens": 50, "missing": 1, "redundant": 2}')
    with pytest.raises(
        DataError, match=r"seed_2 has no evaluations\.jsonl; run compare\.sh with EVALUATE_EVERY=5"
    ):
        read_runs(tmp_path)
    measured = {5: (0.75, 55.0), 10: (0.8, 50.0)}
    names = ("eval_test_pass1", "eval_response_length_mean")
    rows = (
        {"step": step, **dict(zip(names, values, strict=True))} for step, values in measured.items()
    )
    write_rows(run / "evaluations.jsonl", rows)
    base, first, last = read_runs(tmp_path)
    assert (base.method, base.accuracy, base.redundant) == (BASE, 60.0, 9)
    assert (first.strength, first.seed, first.accuracy, first.tokens) == (
        "0.3",
        2,
        pytest.approx(75),
        55.0,
    )
    # Two evaluations of the last policy: 80% with 50 tokens by the training, the same afterwards.
    assert (last.accuracy, last.tokens) == (pytest.approx(80), 50.0)
    write_text(run / "result.json", '{"accuracy": 0.7, "tokens": 52, "missing": 1, "redundant": 2}')
    *_, last = read_runs(tmp_path)
    assert (last.accuracy, last.tokens) == (pytest.approx(75), 51.0)
    assert math.isnan(first.missing) and (last.missing, last.redundant) == (1, 2)
    # The result is of the policy after the last step, and so must the last evaluation be.
    points = read_runs(tmp_path)
    write_rows(run / "metrics.jsonl", [{"step": step} for step in range(1, 11)])
    assert repr(read_runs(tmp_path)) == repr(points)
    write_rows(run / "metrics.jsonl", [{"step": step} for step in range(1, 13)])
    message = r"seed_2 evaluated itself last after step 10 of 12; run compare\.sh with an EVALUATE_EVERY that divides"
    with pytest.raises(DataError, match=message):
        read_runs(tmp_path)
    # A run that goes on has no result, and does not count.
    unfinished = tmp_path / "swap@0.3" / "seed_3"
    run.rename(unfinished)
    (unfinished / "result.json").unlink()
    assert len(read_runs(tmp_path)) == 1
    with pytest.raises(DataError, match=r"without base\.json; run compare\.sh"):
        read_runs(unfinished)


def test_an_unknown_method_is_refused():
    with pytest.raises(
        DataError, match="--against is none, which was not trained; use one of other, swap, third"
    ):
        table(made_up(), IDEAL, "none")


def test_the_last_points_of_some_configurations_by_hand():
    values = {
        ("swap", 1): (90.0, 42.0),
        ("swap", 2): (92.0, 44.0),
        ("a", 1): (80.0, 40.0),
        ("a", 2): (84.0, 40.0),
    }
    points = [
        START,
        Point("a", "2", 1, 10, 99.0, 40.0),
        Point("a", "1", 1, 5, 99.0, 40.0),
    ]  # neither counts
    points += [
        Point(method, "1", seed, 10, *found, 0.5, 1.5) for (method, seed), found in values.items()
    ]
    _, first, second = cells_of(table_of_last(points, IDEAL, ["swap@1", "a@1"]))
    # Regrets: 8 + 1 and 6 + 2; 18 and 14. Changes of accuracy -10 and -8, of tokens -2 and -4: each
    # has a standard error of 1, and 95% lie within 12.7 of those with one degree of freedom.
    assert first == [
        *(
            "swap@1",
            "2",
            "91.0 (1.4)",
            "43.0 (1.4)",
            "0.50 (0.00)",
            "1.50 (0.00)",
            "8.5",
            "",
            "",
            "",
            "",
        )
    ]
    p_accuracy, p_tokens = p_value([-10, -8]), p_value([-2, -4])
    assert second == [
        *("a@1", "2", "82.0 (2.8)", "40.0 (0.0)", "0.50 (0.00)", "1.50 (0.00)", "16.0"),
        *(
            "-9.0 ± 12.7",
            f"{2 * p_accuracy:.3f}",
            "-3.0 ± 12.7",
            f"{max(2 * p_accuracy, p_tokens):.3f}",
        ),
    ]
    with pytest.raises(
        DataError, match="--last names a@3, of which there is no run with these seeds"
    ):
        table_of_last(points, IDEAL, ["swap@1", "a@3"])


FIRST_SEEDS, FRESH_SEEDS = (
    range(1, 6),
    range(6, 12),
)  # strengths were chosen by the first, and compared on the others
FRESH = ["length_critic_by_length@4", "group_length@1", "swap@1"]
ABLATION = ["swap@1", "grpo@0", "no_penalty@1", "outcome_only@1", "static_penalty@1", "step_only@1"]
ABLATION += ["uniform_penalty@1"]
VARIANTS = ["swap@1", "arora@0.2", "gr3@1", "swap_half_sd@1", "swap_zero@1", "to_go@1"]
RATE_CHOSEN = [
    "length_critic_by_length",
    "swap",
    "uniform_penalty_6e-4",
    "outcome_only",
]  # of two, on other seeds
FRONTS = [
    *RATE_CHOSEN,
    "no_penalty",
    "to_go",
    "swap_half_sd",
    "swap_zero",
]  # with as many points each


def regrets_of(points, ideal, base):
    excess = (points.tokens - ideal.tokens).clip(lower=0) / (base.tokens - ideal.tokens)
    return (ideal.accuracy - points.accuracy).clip(lower=0) + COST * excess


def recompute(stats, path, ideal, against, seeds=range(100), methods=None):
    """Method -> (seeds, area, the three accuracies, regret, change of area, Holm's p), by pandas
    and SciPy alone.
    """
    frame = pandas.read_csv(path, dtype={"strength": str})
    frame = frame[(frame.method == BASE) | frame.seed.isin(seeds)]
    named, methods = frame.method + "@" + frame.strength, methods or frame.method.unique()
    frame = frame[(frame.method == BASE) | frame.method.isin(methods) | named.isin(methods)]
    base = frame[frame.method == BASE].iloc[0]
    grid = numpy.exp(numpy.linspace(math.log(ideal.tokens), math.log(base.tokens), 40_001))

    def fronts_of(points, lengths):
        both = pandas.concat([points, frame[frame.method == BASE]]).sort_values("tokens")
        best = both.accuracy.cummax().to_numpy()
        index = numpy.searchsorted(both.tokens.to_numpy(), lengths, side="right") - 1
        return numpy.where(index >= 0, best[index.clip(0)], 0)

    runs = frame[frame.method != BASE]
    grouped = runs.groupby(["method", "seed"])[["tokens", "accuracy"]]
    areas = grouped.apply(lambda points: fronts_of(points, grid).mean()).unstack()
    changes = (areas - areas.loc[against]).drop(against)
    paired = {method: row.dropna() for method, row in changes.iterrows()}
    tests = {
        method: stats.ttest_1samp(row, 0).pvalue if len(row) > 1 else 1.0
        for method, row in paired.items()
    }
    corrected = corrected_by_hand(tests)
    last = runs[runs.step == runs.step.max()].copy()
    last["regret"] = regrets_of(last, ideal, base)
    found = {}
    for method, of_method in last.groupby("method"):
        regrets = of_method.pivot(index="seed", columns="strength", values="regret").dropna(axis=1)
        others = {
            seed: regrets.drop(seed) if len(regrets) > 1 else regrets for seed in regrets.index
        }
        at = [
            fronts_of(points, [m * ideal.tokens for m in MULTIPLES])
            for _, points in grouped
            if _[0] == method
        ]
        found[method] = (
            len(regrets),
            areas.loc[method].mean(),
            numpy.mean(at, axis=0),
            numpy.mean([regrets.loc[seed, rest.mean().idxmin()] for seed, rest in others.items()]),
            changes.loc[method].mean() if method != against else None,
            corrected.get(method),
        )
    return found


def assert_printed(printed, expected):
    """The rows of a printed table, rounded as they are, and no others."""
    _, *rows = printed
    assert {cells[0] for cells in rows} == set(expected)
    for method, seeds, _, mean, *rest in rows:
        count, area_of, at, regret_of, change, corrected = expected[method]
        assert int(seeds) == count
        assert float(mean) == pytest.approx(area_of, abs=0.06)
        assert [float(value) for value in rest[:3]] == pytest.approx(list(at), abs=0.051)
        assert float(rest[3]) == pytest.approx(regret_of, abs=0.051)
        assert bool(rest[7]) == bool(rest[8]) == (change is not None)
        if change is not None:
            assert float(rest[7]) == pytest.approx(change, abs=0.06)
            assert float(rest[8]) == pytest.approx(corrected, abs=0.0051)


def test_the_table_is_what_pandas_and_scipy_make_of_the_points(stats, tmp_path):
    path = tmp_path / "kept.csv.gz"
    keep(path, made_up())
    assert_printed(
        cells_of(table(read_kept(path), IDEAL, "swap")), recompute(stats, path, IDEAL, "swap")
    )


RESULTS = STUDIES / "results" / "fronts_words.csv.gz"
KEPT = read_kept(RESULTS)
KEPT_IDEAL = Ideal(98.6, 38.5, KEPT[0])


def of_seeds(seeds):
    return [point for point in KEPT if point.method == BASE or point.seed in seeds]


def shown(page):
    """Each table of fronts on a page, by the methods or configurations in its rows."""
    tables = tables_in(f"method/{page}", "method | seeds |") + tables_in(
        f"method/{page}", "configuration | seeds |"
    )
    return {tuple(sorted(name for name, *_ in rows)): [header, *rows] for header, *rows in tables}


def test_no_table_of_kept_runs_is_left_out_below():
    found = [*shown("critic.md"), *shown("comparison.md")]
    assert sorted(found) == sorted(
        tuple(sorted(tested)) for tested in (FRONTS, FRESH, ABLATION, VARIANTS)
    )


def test_the_table_in_the_docs_is_what_pandas_and_scipy_make_of_the_kept_runs(stats):
    """And what fronts.py prints of them: every figure of the page follows from the file."""
    against = "length_critic_by_length"
    cells, points = (
        shown("critic.md")[tuple(sorted(FRONTS))],
        of_methods(of_seeds(FIRST_SEEDS), FRONTS),
    )
    lengths = {
        method: {len(of) for of in seeds.values()} for method, seeds in by_seed(points).items()
    }
    assert (
        lengths.keys() == set(FRONTS) and len(set.union(*lengths.values())) == 1
    )  # a front is a maximum
    assert_printed(cells, recompute(stats, RESULTS, KEPT_IDEAL, against, FIRST_SEEDS, FRONTS))
    assert cells[1:] == cells_of(table(points, KEPT_IDEAL, against))[1:]


@pytest.mark.parametrize(
    ("page", "seeds", "names"),
    [
        ("critic.md", FRESH_SEEDS, FRESH),
        ("comparison.md", FIRST_SEEDS, ABLATION),
        ("comparison.md", FIRST_SEEDS, VARIANTS),
    ],
)
def test_the_tables_of_last_points_in_the_docs_are_what_pandas_and_scipy_make_of_them(
    stats, page, seeds, names
):
    _, *rows = shown(page)[tuple(sorted(names))]
    assert rows == cells_of(table_of_last(of_seeds(seeds), KEPT_IDEAL, names))[1:]
    frame = pandas.read_csv(RESULTS, dtype={"strength": str})
    base = frame[frame.method == BASE].iloc[0]
    last = frame[(frame.step == 20) & frame.seed.isin(seeds)].copy()
    last["name"] = last.method + "@" + last.strength
    last["regret"] = regrets_of(last, KEPT_IDEAL, base)
    columns = ("accuracy", "tokens", "missing", "redundant", "regret")
    values = {
        column: last.pivot(index="seed", columns="name", values=column)[names] for column in columns
    }
    against, *others = names
    tests = {
        (column, name): stats.ttest_rel(values[column][name], values[column][against])
        for column in ("accuracy", "tokens")
        for name in others
    }
    corrected = corrected_by_hand({key: test.pvalue for key, test in tests.items()})
    for name, count, accuracy, tokens, missing, redundant, regret_, *changes in rows:
        assert int(count) == len(values["accuracy"]) >= 5
        for column, digits, cell in zip(
            columns, (1, 1, 2, 2), (accuracy, tokens, missing, redundant), strict=False
        ):
            of = values[column][name]
            assert cell == f"{of.mean():.{digits}f} ({of.std():.{digits}f})"
        assert float(regret_) == pytest.approx(values["regret"][name].mean(), abs=0.051)
        for column, change, p in zip(
            ("accuracy", "tokens"), changes[::2], changes[1::2], strict=True
        ):
            if name == against:
                assert change == p == ""
                continue
            low, high = tests[column, name].confidence_interval()
            mean, half = map(float, change.split(" ± "))
            assert (mean, half) == pytest.approx(((low + high) / 2, (high - low) / 2), abs=0.051)
            assert float(p) == pytest.approx(corrected[column, name], abs=0.00051)
