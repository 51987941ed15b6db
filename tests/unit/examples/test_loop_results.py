"""The tables of the loop's trainings, recomputed by pandas and SciPy from the kept runs."""

import json
import math
import re

import pandas as pd
import pytest
from loop_results import MEASURES, by_run, differences, read_runs
from support.corrections import SCIPY, corrected_by_hand, needs_scipy
from support.paths import ROOT

RESULTS = ROOT / "examples" / "studies" / "results" / "loop.csv.gz"
PAGE = (ROOT / "docs" / "method" / "comparison.md").read_text(encoding="utf-8")


def test_runs_are_read_and_those_that_have_not_ended_left_out(tmp_path):
    numbers = {"accuracy": 0.5, "tokens": 10.0, "essential": 2.0, "redundant": 0.95}
    steps = [
        {"step": 0, **numbers, "price": 1.0},
        {"step": 1, **numbers, "redundant": 0.0},
    ]
    ended = [*steps, {"step": None, **numbers, "accuracy": 0.75}]
    for name, rows in (("words-weights.oracle-0.3-25-7", ended), ("words-weights.oracle-0.3-25-8", steps)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    runs = by_run(read_runs(tmp_path))
    assert runs[["world", "arm", "theta", "max_steps", "seed"]].to_numpy().tolist() == [
        ["words", "weights.oracle", 0.3, 25, 7]
    ]
    assert runs.accuracy.item() == 0.75
    assert runs["log redundant"].item() == pytest.approx(math.log(0.05) / 2)  # ln 1 and ln .05


def table_in_the_docs(header):
    found = re.search(rf"^\| {re.escape(header)}.*?(?=\n\n)", PAGE, re.MULTILINE | re.DOTALL)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in found[0].splitlines()[2:]]


@needs_scipy
def test_the_tests_in_the_docs_are_what_pandas_and_scipy_make_of_the_kept_runs(monkeypatch):
    monkeypatch.syspath_prepend(SCIPY)
    from scipy import stats

    frame = pd.read_csv(RESULTS)
    frame = frame[(frame.world == "columns") & (frame.seed > 100)]
    steps = frame[frame.step.notna()].assign(logs=lambda rows: (rows.redundant + 0.05).map(math.log))
    ends = frame[frame.step.isna()]
    rows = table_in_the_docs("arm | less | theta")
    tests = {}
    for first, second, theta, seeds, *_ in rows:
        for name in MEASURES:
            source, column = (steps, "logs") if name == "log redundant" else (ends, name)
            own = source[source.theta == float(theta)].pivot_table(column, index="seed", columns="arm")
            pair = own[[first, second]].dropna()
            assert len(pair) == int(seeds) >= 5
            tests[first, theta, name] = stats.ttest_rel(pair[first], pair[second])
    for name in MEASURES:
        own = {key: test.pvalue for key, test in tests.items() if key[2] == name}
        corrected = corrected_by_hand(own)
        for first, _, theta, _, *cells in rows:
            mean, low, high, p = map(float, re.findall(r"[-+]?\d*\.\d+", cells[list(MEASURES).index(name)]))
            interval = tests[first, theta, name].confidence_interval()
            digits = len(re.search(r"\.(\d+)f", MEASURES[name])[1])
            expected = ((interval.low + interval.high) / 2, interval.low, interval.high)
            assert (mean, low, high) == pytest.approx(expected, abs=0.51 * 10**-digits)
            expected_p = corrected[first, theta, name]
            assert expected_p < 0.001 if "<" in cells[list(MEASURES).index(name)] else abs(p - expected_p) < 0.00051


def test_a_difference_by_hand():
    rows = [
        {
            "arm": arm,
            "theta": 1.0,
            "seed": seed,
            "log redundant": base + seed,
            "redundant": base,
            "accuracy": 0.5,
            "tokens": 1.0,
        }
        for arm, base in (("a", 1.0), ("b", 3.0))
        for seed in (1, 2)
    ]
    rows[0]["log redundant"] += 0.5
    text = differences(pd.DataFrame(rows), ["a/b@1"])
    # -1.5 and -2: mean -1.75, half an interval of 12.71 * .3536/sqrt(2).
    assert "-1.75 (-4.93 to +1.43), p 0.090" in text and "+0.000 (+0.000 to +0.000), p 1.000" in text
