"""The command that evaluates."""

from support.paths import POLICY

from evaluation import run
from openrlhf_swap.command import run_command
from openrlhf_swap.files import write_rows


def test_settings_of_a_folder_do_not_change(tmp_path, capsys):
    flags = ["--model", str(POLICY), "--output", str(tmp_path / "out"), "--samples", "1"]
    problems = tmp_path / "own.jsonl"
    write_rows(problems, [{"problem": "1", "answer": "1"}])
    (tmp_path / "out").mkdir()
    run.write_or_compare_settings(run.parse([*flags, "--benchmarks", str(problems)]))
    assert run_command(run.main, [*flags, "--benchmarks", str(problems), "--temperature", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: --temperature is 1.0, but the samples in")
