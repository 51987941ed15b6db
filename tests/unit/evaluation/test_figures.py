"""Figures: what they show, and that each is drawn."""

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import figures
from openrlhf_swap.evaluation.measures import measure_evaluation
from openrlhf_swap.files import write_rows


def test_the_pareto_front():
    # (tokens, accuracy): the second costs more and is worse than the first, the third is dearer
    # and better.
    points = [(10, 50), (20, 40), (30, 60), (10, 45)]
    assert figures.pareto_front(points) == [0, 2]


def test_accuracy_within_a_budget(evaluated):
    # base: right with 10 and with 50 tokens, four samples.
    samples = measure_evaluation(evaluated / "base")["own"].samples
    assert figures.accuracy_within(samples, [9, 10, 49, 50]) == [0, 0.25, 0.25, 0.5]


def test_accuracy_over_budgets_of_the_thought(budgets):
    """base, with the samples of short under the larger budget: half of them right, then all."""
    (line,) = figures.thoughts(budgets).axes[0].lines
    assert line.get_xdata().tolist() == [8, 64]
    assert line.get_ydata().tolist() == [50, 100]
    assert line.get_label() == "model"


def test_a_figure_of_budgets_needs_budgets(evaluated, capsys):
    words = ["thoughts", str(evaluated / "base"), "--output", str(evaluated / "figure")]
    assert run_command(figures.main, words) == 2
    assert "base has no budget of the thought" in capsys.readouterr().err


def test_every_figure_is_drawn(evaluated, budgets, tmp_path, scored):
    traces = tmp_path / "base.scored.jsonl"
    rows = [scored("p", True, [0.6, 0.1], tokens) for tokens in range(20, 32)]
    write_rows(traces, rows)
    metrics = tmp_path / "metrics.jsonl"
    rows = [{"step": step, "swap/accuracy": 0.5, "length/mean": 9} for step in (1, 2, 3)]
    write_rows(metrics, rows)
    both = [evaluated / "base", evaluated / "short"]
    inputs = {"pareto": both, "budget": both, "gains": [traces], "dynamics": [metrics]}
    inputs["thoughts"] = budgets
    assert set(inputs) == set(figures.FIGURES)
    for name, paths in inputs.items():
        output = tmp_path / "out" / name
        words = [name, *map(str, paths), "--output", str(output)]
        assert run_command(figures.main, words) == 0
        assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert output.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
