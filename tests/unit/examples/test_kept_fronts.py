"""The tables of the fronts, recomputed by pandas and SciPy from the kept runs."""

import math
import re

import pytest
from front_points import BASE, COST, Ideal, by_seed, keep, of_methods, read_kept
from fronts import MULTIPLES, table, table_of_last
from support.corrections import SCIPY, corrected_by_hand, needs_scipy
from support.front_runs import IDEAL, made_up
from support.paths import ROOT

FIRST_SEEDS, FRESH_SEEDS = range(1, 6), range(6, 12)  # strengths were chosen by the first, and compared on the others
FRESH = ["length_critic_by_length@4", "group_length@1", "swap@1"]
ABLATION = [
    "swap@1",
    "grpo@0",
    "no_penalty@1",
    "outcome_only@1",
    "static_penalty@1",
    "step_only@1",
    "uniform_penalty@1",
]
VARIANTS = ["swap@1", "arora@0.2", "gr3@1", "swap_half_sd@1", "swap_zero@1", "to_go@1"]
RATE_CHOSEN = ["length_critic_by_length", "swap", "uniform_penalty_6e-4", "outcome_only"]  # of two, on other seeds
FRONTS = [*RATE_CHOSEN, "no_penalty", "to_go", "swap_half_sd", "swap_zero"]  # with as many points each


def regrets_of(points, ideal, base):
    excess = (points.tokens - ideal.tokens).clip(lower=0) / (base.tokens - ideal.tokens)
    return (ideal.accuracy - points.accuracy).clip(lower=0) + COST * excess


def recompute(path, ideal, against, seeds=range(100), methods=None):
    """Method -> (seeds, area, the three accuracies, regret, change of area, Holm's p), by pandas and SciPy alone.

    Independent of everything above but the file's columns.
    """
    import numpy
    import pandas
    from scipy import stats

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
    tests = {method: stats.ttest_1samp(row, 0).pvalue if len(row) > 1 else 1.0 for method, row in paired.items()}
    corrected = corrected_by_hand(tests)
    last = runs[runs.step == runs.step.max()].copy()
    last["regret"] = regrets_of(last, ideal, base)
    found = {}
    for method, of_method in last.groupby("method"):
        regrets = of_method.pivot(index="seed", columns="strength", values="regret").dropna(axis=1)
        others = {seed: regrets.drop(seed) if len(regrets) > 1 else regrets for seed in regrets.index}
        at = [fronts_of(points, [m * ideal.tokens for m in MULTIPLES]) for _, points in grouped if _[0] == method]
        found[method] = (
            len(regrets),
            areas.loc[method].mean(),
            numpy.mean(at, axis=0),
            numpy.mean([regrets.loc[seed, rest.mean().idxmin()] for seed, rest in others.items()]),
            changes.loc[method].mean() if method != against else None,
            corrected.get(method),
        )
    return found


def assert_printed(text, expected):
    """The rows of a printed table, rounded as they are, and no others."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]
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


@needs_scipy
def test_the_table_is_what_pandas_and_scipy_make_of_the_points(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCIPY)
    path = tmp_path / "kept.csv.gz"
    keep(path, made_up())
    assert_printed(table(read_kept(path), IDEAL, "swap"), recompute(path, IDEAL, "swap"))


RESULTS = ROOT / "examples" / "studies" / "results" / "fronts_words.csv.gz"
KEPT = read_kept(RESULTS)
KEPT_IDEAL = Ideal(98.6, 38.5, KEPT[0])


def of_seeds(seeds):
    return [point for point in KEPT if point.method == BASE or point.seed in seeds]


def tables_in_the_docs(page):
    """(methods or configurations, text) of each table."""
    page = (ROOT / "docs" / "method" / page).read_text(encoding="utf-8")
    tables = re.findall(r"^\| (?:method|configuration) \| seeds \|.*?(?=\n\n)", page, re.MULTILINE | re.DOTALL)
    return [({line.split()[1] for line in text.splitlines()[2:]}, text) for text in tables]


def table_in_the_docs(page, names):
    (text,) = [text for found, text in tables_in_the_docs(page) if found == set(names)]
    return text


def test_no_table_of_kept_runs_is_left_out_below():
    found = [names for page in ("critic.md", "comparison.md") for names, _ in tables_in_the_docs(page)]
    tested = [FRONTS, FRESH, ABLATION, VARIANTS]
    assert sorted(map(sorted, found)) == sorted(map(sorted, tested))


def assert_same_cells(page, printed):
    cells = [[line.replace(" ", "").split("|") for line in each.splitlines()[2:]] for each in (page, printed)]
    assert cells[0] == cells[1]


@needs_scipy
def test_the_table_in_the_docs_is_what_pandas_and_scipy_make_of_the_kept_runs(monkeypatch):
    """And what fronts.py prints of them: every figure of the page follows from the file."""
    monkeypatch.syspath_prepend(SCIPY)
    against = "length_critic_by_length"
    text, points = table_in_the_docs("critic.md", FRONTS), of_methods(of_seeds(FIRST_SEEDS), FRONTS)
    lengths = {method: {len(of) for of in seeds.values()} for method, seeds in by_seed(points).items()}
    assert lengths.keys() == set(FRONTS) and len(set.union(*lengths.values())) == 1  # a front is a maximum
    assert_printed(text, recompute(RESULTS, KEPT_IDEAL, against, FIRST_SEEDS, FRONTS))
    assert_same_cells(text, table(points, KEPT_IDEAL, against))


@needs_scipy
@pytest.mark.parametrize(
    ("page", "seeds", "names"),
    [
        ("critic.md", FRESH_SEEDS, FRESH),
        ("comparison.md", FIRST_SEEDS, ABLATION),
        ("comparison.md", FIRST_SEEDS, VARIANTS),
    ],
)
def test_the_tables_of_last_points_in_the_docs_are_what_pandas_and_scipy_make_of_them(monkeypatch, page, seeds, names):
    monkeypatch.syspath_prepend(SCIPY)
    import pandas
    from scipy import stats

    text = table_in_the_docs(page, names)
    assert_same_cells(text, table_of_last(of_seeds(seeds), KEPT_IDEAL, names))

    frame = pandas.read_csv(RESULTS, dtype={"strength": str})
    base = frame[frame.method == BASE].iloc[0]
    last = frame[(frame.step == 20) & frame.seed.isin(seeds)].copy()
    last["name"] = last.method + "@" + last.strength
    last["regret"] = regrets_of(last, KEPT_IDEAL, base)
    columns = ("accuracy", "tokens", "missing", "redundant", "regret")
    values = {column: last.pivot(index="seed", columns="name", values=column)[names] for column in columns}
    against, *others = names
    tests = {
        (column, name): stats.ttest_rel(values[column][name], values[column][against])
        for column in ("accuracy", "tokens")
        for name in others
    }
    corrected = corrected_by_hand({key: test.pvalue for key, test in tests.items()})
    for line in text.splitlines()[2:]:
        name, count, accuracy, tokens, missing, redundant, regret_, *changes = map(str.strip, line.split("|")[1:-1])
        assert int(count) == len(values["accuracy"]) >= 5
        for column, digits, cell in zip(columns, (1, 1, 2, 2), (accuracy, tokens, missing, redundant), strict=False):
            of = values[column][name]
            assert cell == f"{of.mean():.{digits}f} ({of.std():.{digits}f})"
        assert float(regret_) == pytest.approx(values["regret"][name].mean(), abs=0.051)
        for column, change, p in zip(("accuracy", "tokens"), changes[::2], changes[1::2], strict=True):
            if name == against:
                assert change == p == ""
                continue
            low, high = tests[column, name].confidence_interval()
            mean, half = map(float, change.split(" ± "))
            assert (mean, half) == pytest.approx(((low + high) / 2, (high - low) / 2), abs=0.051)
            assert float(p) == pytest.approx(corrected[column, name], abs=0.00051)
