"""What separates methods: against numbers worked by hand, and a bootstrap that draws one by one."""

import random
import shutil
from dataclasses import replace
from statistics import fmean

import decomposition
import numpy as np
import pytest
from differences import (
    Method,
    by_level,
    compare,
    differences,
    interval,
    keep,
    overview,
    read_kept,
    read_results,
    student,
    t_quantile,
)
from support.tables import cells_of

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows

LABELS = ("essential", "redundant")


def write(path, rows, labels=LABELS):
    """Rows of (problem, correct, tokens, lines of each label)."""
    names = ("problem", "correct", "tokens", *labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_rows(path, (dict(zip(names, row, strict=True)) for row in rows))
    return path


def results(accuracy, tokens, essential=1.0, redundant=2.0):
    accuracy = np.array(accuracy, dtype=float)
    values = {"accuracy": accuracy, "tokens": np.array(tokens, dtype=float)}
    values |= {
        "essential": np.full_like(accuracy, essential),
        "redundant": np.full_like(accuracy, redundant),
    }
    return Method(tuple(range(1, len(accuracy) + 1)), values)


def test_samples_of_a_problem_are_averaged(tmp_path):
    short = [("p", True, 10, 3, 0), ("p", False, 20, 2, 1), ("q", True, 6, 3, 0)]
    with pytest.raises(
        DataError, match="not the same number of samples of every problem; evaluate again"
    ):
        read_results([write(tmp_path / "m" / "0.jsonl", short)], LABELS)
    rows = [*short, ("q", True, 8, 3, 4)]
    found = read_results([write(tmp_path / "m" / f"{n}.jsonl", rows) for n in (1, 2)], LABELS)
    assert found["accuracy"].tolist() == [[50.0, 100.0]] * 2
    assert found["tokens"].tolist() == [[15.0, 7.0]] * 2
    assert found["redundant"].tolist() == [[0.5, 2.0]] * 2


def test_answers_to_other_problems_are_refused(tmp_path):
    files = [write(tmp_path / "m" / f"{p}" / "r.jsonl", [(p, True, 1, 1, 1)]) for p in "pq"]
    with pytest.raises(DataError, match="answers to different problems; evaluate"):
        read_results(files, LABELS)


def test_the_interval_is_a_bootstrap_s_over_seeds_and_problems():
    rng = random.Random(1)
    values = np.array([[rng.gauss(seed, 3) for _ in range(30)] for seed in range(4)])
    means = []
    for _ in range(4000):
        seeds, problems = rng.choices(range(4), k=4), rng.choices(range(30), k=30)
        means.append(fmean(values[s, p] for s in seeds for p in problems))
    means.sort()
    mean, low, high = interval(values)
    assert mean == pytest.approx(values.mean())
    # Of 4,000 draws the 2.5% quantile of a normal variable lies within 0.05 of its deviation.
    assert low == pytest.approx(means[100], abs=0.15 * np.std(means))
    assert high == pytest.approx(means[-100], abs=0.15 * np.std(means))


def test_tables_by_hand():
    methods = {
        "base": results([[0, 100]], [[100, 200]], essential=2.0, redundant=4.0),
        "a": results([[100, 100], [100, 100]], [[50, 60], [50, 60]]),
        "b": results([[100, 100]], [[40, 50]], redundant=1.0),
    }
    _, _, first, second = cells_of(overview(methods, LABELS))
    assert first == [
        "a",
        "2",
        "100.0 (100.0 to 100.0)",
        "55.0 (50.0 to 60.0)",
        "1.00 (50%)",
        "2.00 (50%)",
    ]
    assert second[-1] == "1.00 (25%)"
    assert (
        differences({**methods, "b": replace(methods["b"], seeds=(7,))}).count("\n") == 1
    )  # no seed in common
    _, row = cells_of(differences(methods))
    assert row == ["a", "b", "+0.0 (+0.0 to +0.0)", "**-10.0 (-10.0 to -10.0)**", "-", "1 of 1"]
    # 10 and 30 points up, then 20 down: up in the mean.
    start = [[50, 50], [50, 50], [50, 50]]
    pair = {"a": results(start, start), "b": results([[60, 60], [80, 80], [30, 30]], start)}
    # Their mean is 6.7, their deviation 25.2, and 4.303 of it over the root of 3 are 62.5.
    _, row = cells_of(differences(pair))
    assert row[-2:] == ["+6.7 ± 62.5", "2 of 3"]
    assert student(np.array([4.0, 5.0, 6.0, 5.0])) == "**+5.0 ± 1.3**"  # 3.182 * .816 / 2


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (30, 2.042)]
)
def test_quantiles_are_those_of_the_printed_tables(freedom, quantile):
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-4)


def test_levels_by_hand():
    methods = {"base": results([[0, 100]], [[100, 200]])}
    assert cells_of(by_level(methods, [2, 11])) == [
        ["", "1 to 4 operations (1)", "9 to 12 operations (1)"],
        ["base", "0.0%, 100", "100.0%, 200"],
    ]


def test_a_comparison_is_read_and_drawn(tmp_path):
    with pytest.raises(DataError, match="holds no finished comparison; run compare"):
        compare(decomposition, tmp_path)
    rows = [(f"Sums of a: {n}+1", True, 9, 1, 0, n) for n in range(1, 9)]
    for name in ("base", "base_budget"):
        write(tmp_path / f"{name}.responses.jsonl", rows, decomposition.LABELS)
    with pytest.raises(DataError, match="holds no finished comparison; run compare"):
        compare(decomposition, tmp_path)
    for name in ("grpo", "swap"):
        write(tmp_path / name / "seed_1" / "result.responses.jsonl", rows, decomposition.LABELS)
    text = compare(decomposition, tmp_path)
    # What a policy does before training, asked in another way, has a row, and no pair.
    assert text.count("| base_budget |") == 2
    assert "1 to 4 operations (8)" in text and "| grpo   | swap |" in text
    assert (tmp_path / "differences.md").read_text() == text
    assert (tmp_path / "pareto.png").stat().st_size > 5000
    assert "| swap   | grpo |" in compare(decomposition, tmp_path, against="swap")
    with pytest.raises(
        DataError, match="--against is zero, which was not trained; use one of grpo, swap"
    ):
        compare(decomposition, tmp_path, against="zero")


def test_values_are_kept_and_compared_with_later_ones(tmp_path):
    rows = [(f"Sums of a: {n}+1", n % 3 == 0, 9 + n, 1, 0, n) for n in range(1, 9)]
    kept, texts = tmp_path / "kept.csv.gz", []
    for folder, method in (("first", "grpo"), ("second", "swap"), ("second", "zero")):
        for name in ("base", f"{method}/seed_1/result", f"{method}/seed_2/result"):
            write(tmp_path / folder / f"{name}.responses.jsonl", rows, decomposition.LABELS)
        texts.append(compare(decomposition, tmp_path / folder, kept))
    written = kept.read_bytes()
    methods, levels = read_kept(kept)
    assert list(methods) == ["base", "grpo", "swap", "zero"] and levels == [1] * 8
    assert methods["grpo"].seeds == (1, 2) and methods["base"].seeds == (0,)
    assert methods["grpo"].results["accuracy"].tolist() == [[0, 0, 100, 0, 0, 100, 0, 0]] * 2
    assert methods["zero"].results["tokens"].tolist() == [list(range(10, 18))] * 2
    keep(kept, methods, levels)
    assert kept.read_bytes() == written
    assert "| grpo   | zero |" in texts[-1] and "zero" not in texts[1]
    later = tmp_path / "second" / "swap" / "seed_10" / "result.responses.jsonl"
    write(later, [(*row[:2], 1, *row[3:]) for row in rows], decomposition.LABELS)
    shutil.rmtree(later.parents[1] / "seed_1")
    compare(decomposition, tmp_path / "second", kept)
    swap = read_kept(kept)[0]["swap"]
    assert swap.seeds == (1, 2, 10) and swap.results["tokens"][:, 0].tolist() == [10, 10, 1]
    for path in (tmp_path / "second").rglob("*.responses.jsonl"):
        write(path, [(row[0] + "+1", *row[1:]) for row in rows], decomposition.LABELS)
    with pytest.raises(DataError, match=r"kept\.csv\.gz is of other problems than"):
        compare(decomposition, tmp_path / "second", kept)
