"""Traces: what `openrlhf_swap.score` reads."""

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import traces
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import read_rows, write_rows


def test_traces_join_problem_sample_and_grade(evaluated, tmp_path):
    folder = evaluated / "base"
    write_rows(
        rows_path("problems", folder, "own"),
        [{"id": "p", "problem": "1+1", "answer": "2"}, {"id": "q", "problem": "2+2", "answer": "4"}],
    )
    output = tmp_path / "new" / "traces.jsonl"
    assert run_command(traces.main, [str(folder), "--output", str(output), "--samples", "1"]) == 0
    rows = list(read_rows(output))
    assert [(row["id"], row["problem"], row["answer"], row["correct"]) for row in rows] == [
        ("p", "1+1 Think.", "2", True),  # as it was asked
        ("q", "2+2 Think.", "4", True),
    ]


def test_an_output_that_cannot_be_written_is_one_line(evaluated, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert run_command(traces.main, [str(evaluated / "base"), "--output", str(tmp_path / "file" / "x.jsonl")]) == 2
    assert capsys.readouterr().err.startswith("error: --output is ")
    output = tmp_path / "new" / "x.jsonl"
    assert run_command(traces.main, [str(tmp_path), "--output", str(output)]) == 2
    assert not output.parent.exists()
