"""Benchmarks: what is read from files and from the hub, and what is refused."""

import dataclasses
import re

import pytest

from openrlhf_swap.data.benchmarks import BENCHMARKS, Problem, load_benchmark
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import write_rows


def of_hub(name, column, answer):
    """The rows of a benchmark on the hub."""
    size = BENCHMARKS[name].sizes[0]
    return [{"question": f"q{number}", column: answer} for number in range(size)]


def test_a_benchmark_that_is_not_what_it_should_be(tmp_path):
    write_rows(tmp_path / "aime24.jsonl", [{"id": "1", "problem": "1+1", "answer": "2"}])
    with pytest.raises(DataError, match="does not hold the problems of AIME24"):
        load_benchmark("aime24", tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        load_benchmark("aime25", tmp_path)
    with pytest.raises(ConfigError, match="--benchmarks has 'aime26'"):
        load_benchmark("aime26")


def test_a_file_of_ones_own(tmp_path):
    path = tmp_path / "own.jsonl"
    write_rows(path, [{"problem": "1+1", "answer": "$2$"}, {"problem": "2+2", "answer": 4}])
    first, second = load_benchmark(str(path))
    assert first == Problem("0", "1+1", "2")
    assert second == Problem("1", "2+2", "4")
    write_rows(path, [{"problem": "x^2=4", "answer": ["2,-2"]}])
    assert load_benchmark(str(path)) == [Problem("0", "x^2=4", "2,-2")]
    write_rows(path, [{"id": "a", "problem": "1", "answer": "2"}] * 2)
    with pytest.raises(DataError, match="1 duplicate ids"):
        load_benchmark(str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"answer": "2"}', "problem is null; give every row a problem and an answer"),
        (b'{"problem": "1", "answer": ""}', 'answer is ""; give every row'),
        (b'{"problem": "1", "answer": null}', "answer is null"),
        (b'{"problem": "1", "answer": ["3", ""]}', 'answer is ["3", ""]; give every row'),
    ],
)
def test_a_problem_that_nothing_can_solve_is_refused(tmp_path, row, message):
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"problem": "1+1", "answer": "2"}\n' + row + b"\n")
    with pytest.raises(DataError) as error:
        load_benchmark(str(path))
    assert str(error.value).startswith(f"{path}, row 2: {message}")


def test_without_a_grader_no_answers_are_needed(tmp_path):
    path = tmp_path / "own.jsonl"
    write_rows(path, [{"problem": "1+1"}, {"problem": "2+2", "answer": None}])
    problems = load_benchmark(str(path), grader="none")
    assert [problem.answer for problem in problems] == ["", ""]


def test_hub_data_sets_are_pinned():
    for benchmark in BENCHMARKS.values():
        assert re.fullmatch("[0-9a-f]{40}", benchmark.revision)


@pytest.mark.parametrize(
    ("name", "column", "given", "answer"),
    [
        ("amc23", "answer", "27.0", "27"),
        ("gsm8k", "answer", "18 = ...\n#### 1,018", "1018"),
        ("olympiadbench", "final_answer", [r"$\frac{1}{2}$"], r"\frac{1}{2}"),
    ],
)
def test_hub_data_sets_are_read(tmp_path, monkeypatch, name, column, given, answer):
    """The same loading code on local data sets with the hub's columns."""
    benchmark = BENCHMARKS[name]
    file = tmp_path / f"{benchmark.split}.jsonl"
    rows = of_hub(name, column, given)
    write_rows(file, rows)
    local = dataclasses.replace(benchmark, hub=str(tmp_path), subset=None)
    monkeypatch.setitem(BENCHMARKS, name, local)
    assert load_benchmark(name)[1] == Problem(f"{name}-1", "q1", answer)
    write_rows(file, rows[1:])
    with pytest.raises(DataError, match=rf"has {len(rows) - 1} problems; it should have "):
        load_benchmark(name)


@pytest.mark.parametrize("answer", ["\\frac{1}{", "proof"])
def test_answers_that_no_response_can_be_graded_against_are_refused(
    tmp_path, monkeypatch, answer, capsys
):
    """Every sample would count as wrong; a benchmark's copy, which has a checksum, keeps them."""
    rows = [{"problem": "What?", "answer": "12"}, {"problem": "Which?", "answer": answer}]
    write_rows(tmp_path / "own.jsonl", rows)
    with pytest.raises(DataError, match=r"own.jsonl has 1 answer that no response can be graded"):
        load_benchmark(str(tmp_path / "own.jsonl"))
    assert len(load_benchmark(str(tmp_path / "own.jsonl"), needs_answers=False)) == 2
    monkeypatch.setitem(BENCHMARKS, "amc23", dataclasses.replace(BENCHMARKS["amc23"], checksum=""))
    copy = [{"problem": f"q{number}", "answer": "(1,2)"} for number in range(39)]
    write_rows(tmp_path / "amc23.jsonl", [*copy, {"problem": "q", "answer": answer}])
    assert len(load_benchmark("amc23", tmp_path)) == 40
    assert "warning: AMC23 has 1 answer that no response can be gr" in capsys.readouterr().err


def test_a_row_that_a_verifier_cannot_use_is_named(tmp_path):
    path = tmp_path / "own.jsonl"
    good = {"problem": "1 + 1?", "answer": "B", "options": ["1", "2", "3"]}
    write_rows(path, [good, {**good, "answer": "D"}])
    with pytest.raises(DataError, match=r"row 2 has an answer that is no option's letter: "):
        load_benchmark(str(path), grader="multiple_choice")
