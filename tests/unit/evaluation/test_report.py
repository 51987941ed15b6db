"""Tables, and warnings where evaluations do not compare."""

import json
import shutil

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import report
from openrlhf_swap.evaluation.samples import SETTINGS, SampleFiles
from openrlhf_swap.files import write_rows

STYLES = {
    "markdown": "| short - base | own | 2 | +50.0 (+50.0 to +50.0) | -30 (-45 to -15) |",
    "latex": r"short - base & own & 2 & +50.0 (+50.0 to +50.0) & -30 (-45 to -15) \\",
    "terminal": "short - base own 2 +50.0 (+50.0 to +50.0) -30 (-45 to -15)",
    "csv": "base,own,2.0,2.0,0.5,",
}


@pytest.mark.parametrize("style", STYLES)
def test_a_table_in_each_format(evaluated, capsys, style):
    folders = [str(evaluated / name) for name in ("base", "short")]
    assert run_command(report.main, [*folders, "--format", style, "--paper", "1.5B"]) == 0
    shown = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert any(line.startswith(STYLES[style]) for line in lines)
    # SWAP 1.5B: (86.5 + 78.3 + 33.9 + 23.3 + 45.1) / 5 = 53.42, and 17430 / 5 = 3486 tokens.
    (swap,) = [line for line in lines if "SWAP (paper)" in line]
    assert "53.4 / 3486" in swap


def test_evaluations_that_were_not_made_alike_are_not_compared_in_silence(
    evaluated, tmp_path, capsys
):
    base = evaluated / "base"
    other = shutil.copytree(base, tmp_path / "elsewhere" / "base")
    settings = {**dict.fromkeys(SETTINGS), "suffix": ""}
    (base / "run.json").write_text(json.dumps(settings))
    changed = {"model": "b", "seed": 1, "max_model_len": 4096}  # another model is no fault
    (other / "run.json").write_text(json.dumps({**settings, **changed}))
    assert run_command(report.main, [str(base), str(other)]) == 0
    shown = capsys.readouterr()
    warned = f"warning: --max-model-len is not given in {base}, 4096 in {other}: do not compare"
    assert shown.err.startswith(warned)
    assert len(shown.err.splitlines()) == 1
    (other / "run.json").unlink()
    assert run_command(report.main, [str(base), str(other)]) == 0
    warned = f"warning: {other}/run.json is missing, so its settings are not compared\n"
    assert capsys.readouterr().err == warned
    # Both are called base.
    assert str(base) in shown.out
    assert str(other) in shown.out


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("run.json", "[1]"),
        ("run.json", "garbage"),
        ("own.samples.jsonl", "[1]\n"),
        ("own.samples.jsonl", '{"id": "p", "sample": 0}\n'),
        ("own.grades.jsonl", '{"id": "p", "sample": 0, "correct": "text"}\n'),
        ("own.problems.jsonl", '{"id": "p"}\n'),
    ],
)
def test_a_file_that_no_evaluation_wrote_is_one_line(evaluated, capsys, name, content):
    (evaluated / "base" / name).write_text(content)
    assert run_command(report.main, [str(evaluated / "base")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(evaluated / "base") in line


def write_problems(files, texts):
    """Write the problems of an evaluation: id -> text."""
    rows = [{"id": name, "problem": text, "answer": "2"} for name, text in texts.items()]
    write_rows(files.path("problems"), rows)


def test_the_same_text_is_the_same_problem_whatever_its_id(evaluated, capsys):
    base = SampleFiles(evaluated / "base", "own")
    short = SampleFiles(evaluated / "short", "own")
    for kind in ("samples", "grades"):
        rows = [{**row, "id": f"hub-{row['id']}"} for row in short.rows(kind)]
        write_rows(short.path(kind), rows)
    write_problems(base, {"p": "What is 1 + 1?", "q": "What is 2 + 2?"})
    write_problems(short, {"hub-p": "What is  1 + 1?\n", "hub-q": "What is 2 + 3?"})
    words = [str(base.folder), str(short.folder), "--format", "markdown"]
    assert run_command(report.main, words) == 0
    # p: 50% and 20 tokens in the mean of base, 100% and 5 in short; q is another problem.
    row = "| short - base | own | 1 | +50.0 (+50.0 to +50.0) | -15 (-15 to -15) |"
    assert row in capsys.readouterr().out


def write_evaluation(folder, problems, grader="math", answer="1"):
    """Write an evaluation: a problem's text -> under each of its ids, which samples are correct."""
    folder.mkdir()
    files = SampleFiles(folder, "own")
    rows = {"problems": [], "samples": [], "grades": []}
    for text, repetitions in problems.items():
        for again, right in enumerate(repetitions):
            key = f"{text} {again}"
            asked = {"id": key, "problem": text, "answer": answer, "grader": grader}
            rows["problems"].append(asked)
            for sample, correct in enumerate(right):
                place = {"id": key, "sample": sample}
                counts = {"tokens": 100, "thinking_tokens": 5, "truncated": False}
                rows["samples"].append({**place, "text": "", **counts})
                rows["grades"].append(
                    {**place, "correct": correct, "status": "ok", "answer": "1" if correct else "2"}
                )
    for kind, lines in rows.items():
        write_rows(files.path(kind), lines)
    return str(folder)


def test_a_problem_under_several_ids_counts_once(tmp_path, capsys):
    """Both evaluations have half of the samples right; one has its right ones first."""
    first = write_evaluation(tmp_path / "first", {"p": [[True], [False]], "q": [[True], [False]]})
    second = write_evaluation(tmp_path / "second", {"p": [[False], [True]], "q": [[True, False]]})
    assert run_command(report.main, [first, second, "--format", "markdown"]) == 0
    shown = capsys.readouterr().out
    assert "| second - first | own | 2 | +0.0 (+0.0 to +0.0) |" in shown
    # Two problems, of which each is right half of the time, leave nothing uncertain.
    assert "| first | own | 2 | 50.0 | 50.0-50.0 |" in shown


@pytest.mark.parametrize(
    ("other", "warning"),
    [
        ({}, None),
        ({"grader": "regex:(.+)"}, "--swap.grader of own is 'math' in "),
        ({"answer": "7"}, "2 problems of own with other answers: do not compare them"),
        ({"problems": {"p": [[True] * 4], "q": [[True] * 4]}}, "k of pass@k and maj@k of own is 1"),
    ],
)
def test_evaluations_that_were_not_graded_alike_are_named(tmp_path, capsys, other, warning):
    given = {"problems": {"p": [[True]], "q": [[False]]}}
    first = write_evaluation(tmp_path / "first", **given)
    second = write_evaluation(tmp_path / "second", **{**given, **other})
    assert run_command(report.main, [first, second]) == 0
    said = capsys.readouterr().err
    assert said.startswith(f"warning: {warning}") if warning else not said


def test_a_row_of_budgets_for_each_model(budgets, capsys):
    """Right in a half of the samples and in all; 40 and 10 tokens."""
    assert run_command(report.main, [*map(str, budgets), "--format", "markdown"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (header,) = [line for line in lines if "by thought budget" in line]
    row = lines[lines.index(header) + 2]
    assert [cell.strip() for cell in header.split("|")[2:5]] == ["benchmark", "8", "64"]
    cells = [cell.strip() for cell in row.split("|")[1:5]]
    assert cells == ["model", "own", "50.0% / 40", "100.0% / 10"]
