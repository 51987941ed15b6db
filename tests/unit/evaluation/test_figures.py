"""Figures: what they show, and that each is drawn."""

import json

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import figures
from openrlhf_swap.evaluation.measures import measure_benchmark
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import write_rows


def test_the_pareto_front():
    # (tokens, accuracy): the second costs more and is worse than the first, the third is dearer and
    # better.
    assert figures.pareto_front([(10, 50), (20, 40), (30, 60), (10, 45)]) == [0, 2]


def test_accuracy_within_a_budget(evaluated):
    # base: right with 10 and with 50 tokens, four samples.
    samples = measure_benchmark(evaluated / "base", "own").samples
    assert figures.accuracy_within(samples, [9, 10, 49, 50]) == [0, 0.25, 0.25, 0.5]


def test_every_figure_is_drawn(evaluated, tmp_path, scored):
    file, metrics = tmp_path / "base.scored.jsonl", tmp_path / "metrics.jsonl"
    write_rows(file, [scored("p", True, [0.6, 0.1], 20 + n) for n in range(12)])
    # Step 2 done again after a resume, step 3 skipped for its scores.
    steps = [
        {"step": s, "swap/accuracy": 0.01 * n, "length/mean": 9} for n, s in enumerate((1, 2, 2))
    ]
    write_rows(metrics, [*steps, {"step": 3}])
    accuracy, _ = figures.dynamics([metrics]).axes
    assert accuracy.lines[0].get_xydata().tolist() == [[1, 0], [2, 2]]
    for value in (0.1, 0.3):
        for seed in (1, 2):
            folder = tmp_path / "sweep" / f"theta_{value}" / f"seed_{seed}"
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(
                json.dumps({"accuracy": value, "tokens": 100 - seed})
            )
    rows = [{"budget": budget, "accuracy": budget / 100} for budget in (40, 10)]
    write_rows(rows_path("forced", evaluated / "base", "own"), rows)
    evaluations = [evaluated / "base", evaluated / "short"]
    (panel,) = figures.budget(evaluations).axes
    curves = {line.get_label(): line.get_xydata().tolist() for line in panel.lines}
    assert list(curves) == ["base, cut off", "base, forced", "short, cut off"]
    assert curves["base, forced"] == [[10, 10], [40, 40]]
    inputs = {
        "pareto": evaluations,
        "budget": evaluations,
        "gains": [file],
        "sweep": [tmp_path / "sweep"],
        "dynamics": [metrics],
    }
    assert inputs.keys() == figures.FIGURES.keys()
    for name, paths in inputs.items():
        assert (
            run_command(
                figures.main, [name, *map(str, paths), "--output", str(tmp_path / "out" / name)]
            )
            == 0
        )
        for ending, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            assert (tmp_path / "out" / f"{name}.{ending}").read_bytes().startswith(magic)
    assert (
        run_command(figures.main, ["sweep", str(tmp_path / "out"), "--output", str(tmp_path / "x")])
        == 2
    )
