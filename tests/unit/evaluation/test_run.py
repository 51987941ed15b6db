"""The commands as they are started, and the one that evaluates."""

import sys
from types import SimpleNamespace

import pytest
from support.paths import POLICY, ROOT

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import run
from openrlhf_swap.evaluation.samples import SampleFiles
from openrlhf_swap.files import appending, write_rows

ONE = [{"id": "p", "problem": "1 + 1?", "answer": "2"}]
TWO = [*ONE, {"id": "q", "problem": "1 + 2?", "answer": "3"}]


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Python looks for modules in the folder of a script before the standard library."""
    for folder in ("openrlhf_swap", "examples", "scripts", "tests"):
        modules = {path.stem for path in (ROOT / folder).rglob("*.py")} - {"__main__"}
        assert not modules & sys.stdlib_module_names


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys, grader):
    """Starts an evaluation of some rows; returns the exit status and the last line.

    Each response is 2, and the grader is the module's.
    """
    files = ["--output", str(tmp_path / "out"), "--benchmarks", str(tmp_path / "own.jsonl")]
    words = ["--model", str(POLICY), *files, "--samples", "1", "--verbose"]

    def sample(args, requests, _):
        response = {"text": "a</think>\\boxed{2}", "tokens": 9, "thinking_tokens": 5}
        for request in requests:
            row = {"id": request.id, "sample": request.sample, **response, "truncated": False}
            with appending(SampleFiles(args.output, request.benchmark).path("samples")) as append:
                append(row)

    def start(rows, *more):
        write_rows(tmp_path / "own.jsonl", rows)
        status = run_command(run.main, [*words, *more])
        shown = capsys.readouterr()
        return status, (shown.err if status else shown.out).splitlines()[-1]

    kept = SimpleNamespace(grade_many=grader.grade_many, close=lambda: None)
    monkeypatch.setattr(run, "Grader", lambda verifier: kept)
    monkeypatch.setattr(run, "sample", sample)
    return start


def test_a_number_out_of_range_is_refused_before_anything_is_written(evaluate, tmp_path):
    error = "error: --temperature is nan; use at least 0"
    assert evaluate(ONE, "--temperature", "nan") == (2, error)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"id": "0"}, "which has no problem 'p', but"),
        ({"problem": "4 / 2?"}, "whose problem 'p' has another text than its samples"),
        ({"answer": "3"}, "whose problem 'p' has another answer than"),
    ],
)
def test_problems_that_changed_under_their_samples_are_refused(evaluate, tmp_path, change, fault):
    out = tmp_path / "out"
    assert evaluate(ONE)[0] == 0
    files = {path: path.read_bytes() for path in out.iterdir()}
    status, line = evaluate([ONE[0] | change])
    assert status == 2
    assert line.startswith(f"error: --benchmarks has own, {fault}")
    assert {path: path.read_bytes() for path in out.iterdir()} == files


def test_without_grades_a_corrected_answer_is_taken(evaluate, tmp_path):
    wrong = [{**ONE[0], "answer": "3"}]
    assert evaluate(wrong)[1].split()[:4] == ["out", "own", "1", "0.0"]
    SampleFiles(tmp_path / "out", "own").path("grades").unlink()
    assert evaluate(ONE)[1].split()[:4] == ["out", "own", "1", "100.0"]


def test_a_limit_may_grow_and_shrink(evaluate, tmp_path):
    assert evaluate(TWO, "--limit", "1")[1].split()[:4] == ["out", "own", "1", "100.0"]
    changed = {**TWO[1], "problem": "1 + 3?", "answer": "4"}  # it has no samples and may change
    longer = [*ONE, changed, {"id": "r", "problem": "2?", "answer": "2"}]
    assert evaluate(longer)[1].split()[2:4] == ["3", "66.7"]
    assert evaluate(longer, "--limit", "1")[1].split()[2:4] == ["3", "66.7"]
    # What has samples keeps its problem, and with it the texts that later starts compare.
    problems = SampleFiles(tmp_path / "out", "own").rows("problems")
    assert [row["id"] for row in problems] == ["p", "q", "r"]
    assert evaluate([*TWO, longer[2]], "--limit", "1")[0] == 2
