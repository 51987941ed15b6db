"""The commands as they are started, and the one that evaluates."""

import sys
from types import SimpleNamespace

import pytest
from support.paths import POLICY, ROOT

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import run
from openrlhf_swap.evaluation.samples import SampleFiles, thought_budget
from openrlhf_swap.files import appending, write_rows

ONE = [{"id": "p", "problem": "1 + 1?", "answer": "2"}]
TWO = [*ONE, {"id": "q", "problem": "1 + 2?", "answer": "3"}]


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Python looks for modules in the folder of a script before the standard library."""
    for folder in ("openrlhf_swap", "examples", "scripts", "tests"):
        modules = {path.stem for path in (ROOT / folder).rglob("*.py")} - {"__main__"}
        assert not modules & sys.stdlib_module_names


@pytest.fixture
def out(tmp_path):
    return SampleFiles(tmp_path / "out", "own")


@pytest.fixture
def evaluate(tmp_path, out, monkeypatch, capsys, grader):
    """A function that evaluates rows; returns the number of problems and pass@1, or the error.

    Each response is 2, and the grader is that of all tests.
    """
    files = ["--output", str(out.folder), "--benchmarks", str(tmp_path / "own.jsonl")]
    words = ["--model", str(POLICY), *files, "--samples", "1", "--verbose"]

    def sample(args, requests, _):
        response = {"text": "a</think>\\boxed{2}", "tokens": 9, "thinking_tokens": 5}
        with appending(SampleFiles(args.output, "own").path("samples")) as append:
            for request in requests:
                key = {"id": request.id, "sample": request.sample}
                append({**key, **response, "truncated": False})

    def start(rows, *more):
        write_rows(tmp_path / "own.jsonl", rows)
        status = run_command(run.main, [*words, *more])
        shown = capsys.readouterr()
        if status:
            return shown.err.splitlines()[-1]
        cells = shown.out.splitlines()[-1].split()
        return cells[2], cells[3]

    kept = SimpleNamespace(grade_many=grader.grade_many, close=lambda: None)
    monkeypatch.setattr(run, "Grader", lambda verifier: kept)
    monkeypatch.setattr(run, "sample", sample)
    return start


def test_a_number_out_of_range_is_refused_before_anything_is_written(evaluate, out):
    error = "error: --temperature is nan; use at least 0"
    assert evaluate(ONE, "--temperature", "nan") == error
    assert not out.folder.exists()


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"id": "0"}, "which has no problem 'p', but"),
        ({"problem": "4 / 2?"}, "whose problem 'p' has another text than its samples"),
        ({"answer": "3"}, "whose problem 'p' has another answer than"),
    ],
)
def test_problems_that_changed_under_their_samples_are_refused(evaluate, out, change, fault):
    assert evaluate(ONE) == ("1", "100.0")
    before = {path: path.read_bytes() for path in out.folder.iterdir()}
    error = evaluate([ONE[0] | change])
    assert error.startswith(f"error: --benchmarks has own, {fault}")
    assert {path: path.read_bytes() for path in out.folder.iterdir()} == before


def test_without_grades_a_corrected_answer_is_taken(evaluate, out):
    wrong = [{**ONE[0], "answer": "3"}]
    assert evaluate(wrong) == ("1", "0.0")
    out.path("grades").unlink()
    assert evaluate(ONE) == ("1", "100.0")


def test_a_limit_may_grow_and_shrink(evaluate, out):
    assert evaluate(TWO, "--limit", "1") == ("1", "100.0")
    changed = {**TWO[1], "problem": "1 + 3?", "answer": "4"}  # it has no samples and may change
    third = {"id": "r", "problem": "2?", "answer": "2"}
    longer = [*ONE, changed, third]
    assert evaluate(longer) == ("3", "66.7")
    assert evaluate(longer, "--limit", "1") == ("3", "66.7")
    # What has samples keeps its problem, and with it the texts that later starts compare.
    assert [row["id"] for row in out.rows("problems")] == ["p", "q", "r"]
    assert evaluate([*TWO, third], "--limit", "1").startswith("error: --benchmarks has own")


def test_each_budget_of_the_thought_has_a_folder_of_its_own(evaluate, out):
    assert evaluate(ONE, "--thought-budgets", "16", "32") == ("1", "100.0")
    assert evaluate(ONE, "--thought-budgets", "8") == ("1", "100.0")
    assert not out.path("samples").exists()
    for budget in (8, 16, 32):
        folder = out.folder / f"budget_{budget}"
        assert thought_budget(folder) == budget
        assert len(list(SampleFiles(folder, "own").rows("grades"))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--thought-budgets 16 0", "--thought-budgets has 0; use at least 1"),
        (
            "--thought-budgets 16 --max-tokens 20",
            "--thought-budgets has 16, but --max-tokens 20 leaves no room for an answer behind it: "
            "use at least 21, or a smaller budget",
        ),
    ],
)
def test_a_budget_that_cannot_work_is_refused(evaluate, words, message):
    assert evaluate(ONE, *words.split()) == f"error: {message}"
