"""Fronts, areas and regrets by hand."""

import math

import pytest
from front_points import BASE, COST, Point, area, by_seed, front, keep, read_kept, read_runs, regret
from fronts import chosen_points, table, table_of_last
from paired import half_interval, holm, p_value
from support.front_runs import IDEAL, START, made_up

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows, write_text


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
    # And tan(0.95 pi / 2) has 95% of it within; the error of 1 and 3 is 1.
    assert half_interval([1.0, 3.0]) == pytest.approx(math.tan(0.475 * math.pi))


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
    rows = [
        {"step": step, "eval_test_pass1": 0.7 + step / 100, "eval_response_length_mean": 60.0 - step}
        for step in (5, 10)
    ]
    write_rows(run / "evaluations.jsonl", rows)
    base, first, last = read_runs(tmp_path)
    assert (base.method, base.accuracy, base.redundant) == (BASE, 60.0, 9)
    assert (first.strength, first.seed, first.accuracy, first.tokens) == ("0.3", 2, pytest.approx(75), 55.0)
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
    with pytest.raises(DataError, match="--against is none, which was not trained; use one of other, swap, third"):
        table(made_up(), IDEAL, "none")


def test_the_last_points_of_some_configurations_by_hand():
    values = {("swap", 1): (90.0, 42.0), ("swap", 2): (92.0, 44.0), ("a", 1): (80.0, 40.0), ("a", 2): (84.0, 40.0)}
    points = [START, Point("a", "2", 1, 10, 99.0, 40.0), Point("a", "1", 1, 5, 99.0, 40.0)]  # neither counts
    points += [Point(method, "1", seed, 10, *found, 0.5, 1.5) for (method, seed), found in values.items()]
    _, _, first, second = (
        line.split("|")[1:-1] for line in table_of_last(points, IDEAL, ["swap@1", "a@1"]).splitlines()
    )
    # Regrets: 8 + 1 and 6 + 2; 18 and 14. Changes of accuracy -10 and -8, of tokens -2 and -4: each has a standard
    # error of 1, and 95% lie within 12.7 of those with one degree of freedom.
    assert [cell.strip() for cell in first] == [
        *("swap@1", "2", "91.0 (1.4)", "43.0 (1.4)", "0.50 (0.00)", "1.50 (0.00)", "8.5", "", "", "", "")
    ]
    p_accuracy, p_tokens = p_value([-10, -8]), p_value([-2, -4])
    assert [cell.strip() for cell in second] == [
        *("a@1", "2", "82.0 (2.8)", "40.0 (0.0)", "0.50 (0.00)", "1.50 (0.00)", "16.0"),
        *("-9.0 ± 12.7", f"{2 * p_accuracy:.3f}", "-3.0 ± 12.7", f"{max(2 * p_accuracy, p_tokens):.3f}"),
    ]
    with pytest.raises(DataError, match="--last names a@3, of which there is no run with these seeds"):
        table_of_last(points, IDEAL, ["swap@1", "a@3"])
