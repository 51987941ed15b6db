"""Fronts, areas and regrets by hand; the table against pandas and SciPy."""

import math

import pytest
from fronts import (
    BASE,
    COST,
    Ideal,
    Point,
    area,
    by_seed,
    chosen_points,
    front,
    holm,
    keep,
    p_value,
    read_kept,
    read_runs,
    regret,
    table,
)

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows, write_text

START = Point(BASE, "", 0, 0, 60.0, 80.0)
IDEAL = Ideal(98.0, 40.0, START)


def made_up(methods=("swap", "other", "third"), seeds=(1, 2, 3, 4)):
    """Points that look like runs: three strengths, two steps."""
    points = [START]
    for m, method in enumerate(methods):
        for s, strength in enumerate(("0.1", "0.3", "1")):
            for seed in seeds:
                for step in (5, 10):
                    wave = math.sin(7 * m + 3 * s + 1.7 * seed + step)
                    accuracy, tokens = 85 + 3 * m - 4 * s + 3 * wave, 75 - 12 * s - step + 2 * wave
                    points.append(Point(method, strength, seed, step, accuracy, tokens, 0.1 * s, 2.0 - s / 2))
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
    values = {("1", 1): 98.0, ("1", 2): 50.0, ("1", 3): 50.0, ("2", 1): 90.0, ("2", 2): 90.0, ("2", 3): 90.0}
    points = [Point("a", strength, seed, 5, accuracy, 40.0) for (strength, seed), accuracy in values.items()]
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


def test_what_is_kept_is_what_was_measured(tmp_path):
    points, path = made_up(), tmp_path / "kept.csv.gz"
    keep(path, points)
    again = read_kept(path)
    assert again[1:] == points[1:] and again[0].accuracy == START.accuracy and math.isnan(again[0].missing)
    first = path.read_bytes()
    keep(path, points)
    assert path.read_bytes() == first


def test_runs_are_read(tmp_path):
    write_text(tmp_path / "base.json", '{"accuracy": 0.6, "tokens": 80, "missing": 0.5, "redundant": 9}')
    run = tmp_path / "swap@0.3" / "seed_2"
    run.mkdir(parents=True)
    write_text(run / "result.json", '{"accuracy": 0.8, "tokens": 50, "missing": 1, "redundant": 2}')
    with pytest.raises(DataError, match=r"seed_2 has no evaluations\.jsonl; run compare\.sh with EVALUATE_EVERY=5"):
        read_runs(tmp_path)
    rows = [{"step": step, "eval/test/pass1": 0.7 + step / 100, "eval/length": 60.0 - step} for step in (5, 10)]
    write_rows(run / "evaluations.jsonl", rows)
    base, first, last = read_runs(tmp_path)
    assert (base.method, base.accuracy, base.redundant) == (BASE, 60.0, 9)
    assert (first.strength, first.seed, first.accuracy, first.tokens) == ("0.3", 2, pytest.approx(75), 55.0)
    assert math.isnan(first.missing) and (last.missing, last.redundant) == (1, 2)
    with pytest.raises(DataError, match=r"without base\.json; run compare\.sh"):
        read_runs(run)


def test_an_unknown_method_is_refused():
    with pytest.raises(DataError, match="--against is none, which was not trained; use one of other, swap, third"):
        table(made_up(), IDEAL, "none")


def test_the_table_is_what_pandas_and_scipy_make_of_the_kept_points(tmp_path):
    """Independent of everything above but the file's columns."""
    import numpy
    import pandas
    from scipy import stats

    path = tmp_path / "kept.csv.gz"
    keep(path, made_up())
    frame = pandas.read_csv(path)
    base = frame[frame.method == BASE].iloc[0]
    grid = numpy.exp(numpy.linspace(math.log(40), math.log(80), 40_001))

    def area_of(points):
        both = pandas.concat([points, frame[frame.method == BASE]]).sort_values("tokens")
        best = both.accuracy.cummax().to_numpy()
        index = numpy.searchsorted(both.tokens.to_numpy(), grid, side="right") - 1
        return numpy.where(index >= 0, best[index.clip(0)], 0).mean()

    runs = frame[frame.method != BASE]
    areas = runs.groupby(["method", "seed"])[["tokens", "accuracy"]].apply(area_of).unstack()
    tests = {m: stats.ttest_rel(areas.loc[m], areas.loc["swap"]).pvalue for m in areas.index if m != "swap"}
    corrected, ordered, largest = {}, sorted(tests, key=tests.get), 0.0
    for rank, method in enumerate(ordered):
        largest = max(largest, (len(ordered) - rank) * tests[method])
        corrected[method] = min(1.0, largest)
    last = runs[runs.step == runs.step.max()].copy()
    last["regret"] = (98 - last.accuracy).clip(lower=0) + COST * (last.tokens - 40).clip(lower=0) / (base.tokens - 40)
    for line in table(read_kept(path), IDEAL, "swap").splitlines()[2:]:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        method = cells[0]
        assert float(cells[3]) == pytest.approx(areas.loc[method].mean(), abs=0.06)
        of_method = last[last.method == method].pivot(index="seed", columns="strength", values="regret")
        regrets = [of_method.loc[seed, of_method.drop(seed).mean().idxmin()] for seed in of_method.index]
        assert float(cells[7]) == pytest.approx(numpy.mean(regrets), abs=0.051)
        if method != "swap":
            assert float(cells[11]) == pytest.approx((areas.loc[method] - areas.loc["swap"]).mean(), abs=0.06)
            assert float(cells[12]) == pytest.approx(corrected[method], abs=0.0051)
