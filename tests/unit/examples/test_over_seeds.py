"""Methods over seeds, against SciPy and by hand."""

import pytest
from over_seeds import by_method, run_name, table
from support.tables import cells_of, corrected_by_hand


def run(accuracy, tokens):
    return {"accuracy": accuracy, "tokens": tokens}


RUNS = {
    "warm-up": run(70.0, 130.0),
    "swap": run(69.0, 60.0),
    "swap_43": run(67.0, 64.0),
    "swap_44": run(71.0, 68.0),
    "grpo_43": run(70.0, 110.0),
    "grpo": run(68.0, 112.0),
    "swap_zero": run(60.0, 50.0),
}


def test_a_run_is_a_method_with_a_seed():
    assert [run_name("swap", seed) for seed in (42, 43)] == ["swap", "swap_43"]
    found = by_method(RUNS)
    assert {method: list(seeds) for method, seeds in found.items()} == {
        "warm-up": [42],
        "swap": [42, 43, 44],
        "grpo": [43, 42],
        "swap_zero": [42],
    }
    assert found["swap"][43] == run(67.0, 64.0)


def test_methods_with_one_seed_have_no_row():
    assert (
        table({name: RUNS[name] for name in ("warm-up", "swap", "swap_zero", "grpo_43")}, "grpo")
        is None
    )
    text = table({name: RUNS[name] for name in ("warm-up", "swap", "swap_43", "grpo")}, "grpo")
    assert "from warm-up" in text and "from grpo" not in text


def test_the_table_is_what_scipy_makes_of_the_seeds(stats):
    """Changes over all seeds of a method, differences from grpo over those that both have, Holm
    over all six tests.
    """
    header, swap, grpo = cells_of(table(RUNS, "grpo"))
    assert header[4:] == [
        *("accuracy, points, from warm-up", "p (Holm)", "tokens, from warm-up", "p (Holm)"),
        *("accuracy, points, from grpo", "p (Holm)", "tokens, from grpo", "p (Holm)"),
    ]
    assert swap[:4] == ["swap", "42, 43, 44", "69.0 (2.0)", "64.0 (4.0)"]
    assert grpo[:4] == ["grpo", "42, 43", "69.0 (1.4)", "111.0 (1.4)"] and grpo[8:] == [""] * 4
    # Since the warm-up with 70% and 130 tokens; from grpo on seeds 42 and 43.
    samples = [[-1, -3, 1], [-70, -66, -62], [1, -3], [-52, -46], [-2, 0], [-18, -20]]
    tests = [stats.ttest_1samp(sample, 0.0) for sample in samples]
    corrected = corrected_by_hand({place: test.pvalue for place, test in enumerate(tests)})
    changes, ps = swap[4::2] + grpo[4:8:2], swap[5::2] + grpo[5:8:2]
    for place, (change, p) in enumerate(zip(changes, ps, strict=True)):
        low, high = tests[place].confidence_interval()
        assert [float(part) for part in change.split(" ± ")] == pytest.approx(
            [(low + high) / 2, (high - low) / 2], abs=0.051
        )
        assert float(p) == pytest.approx(corrected[place], abs=0.00051)
