"""The sweeps: which methods are points of which one, on which seeds, and numbers worked by hand."""

import json
import math
from pathlib import Path

import decomposition
import numpy as np
import pytest
import sweeps
from differences import Method, keep
from run_sweep import run_folder
from support.paths import STUDIES
from support.tables import cells_of

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.flags.configuration import configure

NAMES = ("accuracy", "tokens", *decomposition.LABELS)


def method(accuracy, seeds=(1, 2), tokens=40.0):
    """A value a seed, the same on both problems."""
    values = np.repeat(np.array(accuracy, dtype=float)[:, None], 2, axis=1)
    rest = {name: np.full_like(values, tokens if name == "tokens" else 2.0) for name in NAMES[1:]}
    return Method(tuple(seeds), {"accuracy": values, **rest})


METHODS = {
    "base": method([50], seeds=(0,), tokens=90.0),
    "swap": method([80, 80, 20], seeds=(1, 2, 3)),
    "grpo": method([90, 90]),
    "outcome_only": method([1, 1]),
    "step_only": method([1, 1]),
    "no_penalty": method([60, 70]),
    "uniform_penalty": method([75, 75, 75], seeds=(1, 2, 3)),
    "theta_1.0": method([10, 10]),
    "theta_0.05": method([85, 85]),
    "M_24": method([70], seeds=(2,)),
}


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        ("theta", {0.0: "grpo", 0.05: "theta_0.05", 0.3: "swap", 1.0: "theta_1.0"}),
        ("lambda", {0.0: "no_penalty", 1.0: "swap"}),
        ("tau", {1.0: "swap", math.inf: "uniform_penalty"}),
        ("M", {3.0: "swap", 24.0: "M_24"}),
    ],
)
def test_methods_that_change_one_setting_are_points_of_its_sweep(symbol, expected):
    found = sweeps.points(symbol, METHODS, step_tokens=3)
    assert list(found) == sorted(expected)
    assert all(found[value] is METHODS[name] for value, name in expected.items())


def test_points_are_compared_on_the_seeds_that_all_have(tmp_path):
    for name, chosen in (
        ("first", ("base", "swap", "grpo", "uniform_penalty")),
        ("second", METHODS),
    ):
        keep(tmp_path / name, {method: METHODS[method] for method in chosen}, [3, 9])
    text = sweeps.report(decomposition, [tmp_path / "first", tmp_path / "second"], tmp_path / "out")
    assert (tmp_path / "out" / "sweeps.md").read_text() == text
    assert (tmp_path / "out" / "sweeps.png").stat().st_size > 5000
    rest = ["40.0 (40.0 to 40.0)", "2.00", "2.00", "2.00"]
    lines = ["essential lines", "useful lines", "redundant lines"]
    parts = text.strip().split("\n\n")
    theta, by_difficulty, *others = map(cells_of, parts)
    assert theta == [
        ["theta (seeds 1, 2)", "accuracy %", "tokens", *lines, "accuracy, points from swap"],
        ["0", "90.0 (90.0 to 90.0)", *rest, "**+10.0 (+10.0 to +10.0)**"],
        ["0.05", "85.0 (85.0 to 85.0)", *rest, "**+5.0 (+5.0 to +5.0)**"],
        ["0.3", "80.0 (80.0 to 80.0)", *rest, "swap"],
        ["1", "10.0 (10.0 to 10.0)", *rest, "**-70.0 (-70.0 to -70.0)**"],
    ]
    assert [rows[0][0] for rows in others[::2]] == [
        "lambda (seeds 1, 2)",
        "tau (seeds 1, 2, 3)",
        "M (seeds 2)",
    ]
    accuracies = {"0": 90, "0.05": 85, "0.3": 80, "1": 10}
    assert by_difficulty == [
        ["", "1 to 4 operations (1)", "9 to 12 operations (1)"],
        *(
            [f"theta {value}", *[f"{accuracy}.0%, 40"] * 2]
            for value, accuracy in accuracies.items()
        ),
    ]
    # Seeds 1 and 2 of no_penalty are 20 and 10 points below swap's, so a draw of two is from -20 to
    # -10.
    assert "**-15.0 (-20.0 to -10.0)**" in parts[2]


def test_what_cannot_be_compared_is_refused(tmp_path):
    kept, others, few, none = (tmp_path / name for name in ("kept", "others", "few", "none"))
    keep(kept, METHODS, [3, 9])
    keep(others, METHODS, [3, 10])
    for path, second in ((few, "swap"), (none, "grpo")):
        keep(path, {name: METHODS[name] for name in ("base", second)}, [3, 9])
    for files, message in (
        ([kept, others], "others, which is of other problems than"),
        ([few], "few has no two points of a sweep with a seed in common"),
        ([none], "none is without swap, which the rest is compared with"),
    ):
        with pytest.raises(DataError, match=message):
            sweeps.report(decomposition, files, tmp_path / "out")
    with pytest.raises(
        DataError, match="--results names absent, which is not there; keep one with"
    ):
        sweeps.main(["--results", "absent", "--output", str(tmp_path)])


def test_the_rows_of_the_sweeps_change_what_their_names_say_and_each_has_a_folder_that_is_a_point():
    rows = json.loads((STUDIES / "objectives" / "decomposition_sweeps.json").read_text())
    expected = set()
    for row in rows:
        symbol, value = row["name"].split("=")
        config, setting = (
            configure(list(map(str, row["train"])), on_cpu=True).method,
            sweeps.SETTINGS[symbol],
        )
        assert getattr(config, setting) == float(value) != getattr(SwapConfig(), setting)
        expected.add((symbol, float(value)))
    assert {symbol for symbol, _ in expected} == set(sweeps.SETTINGS)
    methods = {run_folder(Path(), row["name"], 1).parent.name: METHODS["swap"] for row in rows}
    found = {
        (symbol, value)
        for symbol in sweeps.SETTINGS
        for value in sweeps.points(symbol, methods, step_tokens=3)
    }
    assert found == expected
