"""Tables, and warnings where evaluations do not compare."""

import json
import shutil

import numpy as np

from evaluation import report
from evaluation.grade import grade_file
from evaluation.measures import Measures
from evaluation.samples import forced_path, samples_path
from evaluation.tables import _difference
from openrlhf_swap.command import run_command
from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader


def test_tables(evaluated, capsys):
    folders = [str(evaluated / name) for name in ("base", "short")]
    assert run_command(report.main, [*folders, "--format", "markdown", "--paper", "1.5B"]) == 0
    text = capsys.readouterr().out
    assert "| base | own | 2 | 50.0 |" in text
    assert "| short - base | own | 2 | +50.0 (+50.0 to +50.0) | -30 (-45 to -15) |" in text
    assert "not measured here" in text
    assert "SWAP (paper)" in text
    assert run_command(report.main, [*folders, "--format", "latex"]) == 0
    assert r"short & 100.0 & 10 & 100.0 & 10 \\" in capsys.readouterr().out
    assert run_command(report.main, [*folders, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("base,own,2.0,2.0,0.5,")
    # An answer in the thought alone: nothing is boxed after it.
    text = "\\boxed{2}</think>so 2"
    sample = {"id": "p", "sample": 2, "text": text, "tokens": 9, "thinking_tokens": 5, "truncated": False}
    with open(samples_path(evaluated / "base", "own"), "a") as file:
        file.write(json.dumps(sample) + "\n")
    grader = Grader()
    grade_file(evaluated / "base", "own", [Problem("p", "1+1", "2")], grader, "</think>")
    grader.close()
    assert run_command(report.main, [str(evaluated / "base"), "--disagreements"]) == 0
    assert "own p sample 2: 'so 2' after the thought, '2' anywhere (correct)" in capsys.readouterr().out
    (evaluated / "empty").mkdir()
    assert run_command(report.main, [str(evaluated / "empty")]) == 2
    assert "holds no graded samples" in capsys.readouterr().err


def test_evaluations_that_were_not_made_alike_are_not_compared_in_silence(evaluated, tmp_path, capsys):
    settings = {"model": "a", "temperature": 0.6, "top_p": 0.95, "max_tokens": 9, "seed": 0, "suffix": ""}
    other = tmp_path / "elsewhere" / "base"
    shutil.copytree(evaluated / "base", other)
    (evaluated / "base" / "run.json").write_text(json.dumps(settings))
    (other / "run.json").write_text(json.dumps({**settings, "model": "b", "seed": 1, "suffix": " Think."}))
    assert run_command(report.main, [str(evaluated / "base"), str(other)]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"warning: --suffix is '' in {evaluated / 'base'}, ' Think.' in {other}: do not compare them\n"
    assert str(other) in shown.out and str(evaluated / "base") in shown.out  # both are called base
    (other / "run.json").write_text(json.dumps({**settings, "model": "b", "seed": 1}))
    assert run_command(report.main, [str(evaluated / "base"), str(other)]) == 0
    assert capsys.readouterr().err == ""


def test_a_difference_of_nothing_has_no_minus():
    ones = np.ones(2)
    first = Measures(["p", "q"], 0.5 * ones, 10 * ones, {})
    second = Measures(["p", "q"], 0.4999 * ones, 9.9 * ones, {})
    assert _difference(first, second) == ["2", "+0.0 (+0.0 to +0.0)", "+0 (+0 to +0)"]


def test_areas_of_budgets_stand_in_the_table_with_their_range(evaluated, capsys):
    folders = [str(evaluated / "base"), str(evaluated / "short")]
    report.main([*folders, "--format", "markdown"])
    assert "area" not in capsys.readouterr().out
    rows = [(10, 0.0), (1000, 1.0), (100, 1.0)]
    write_rows(forced_path(evaluated / "base", "own"), [{"budget": b, "accuracy": a, "by": "vllm"} for b, a in rows])
    report.main([*folders, "--format", "markdown"])
    header, _, base, short = capsys.readouterr().out.splitlines()[:4]
    cells = [line.strip(" |").split(" | ")[-1].strip() for line in (header, base)]
    assert cells == ["area % (vllm)", "75.0 (10-1000)"] and short.rstrip(" |").endswith("(k=2) | 100.0")
