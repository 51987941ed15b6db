"""Benchmarks: what is read from files and from the hub, and what is refused."""

import dataclasses
import re

import pytest

from openrlhf_swap.data.benchmarks import BENCHMARKS, Problem, load_benchmark
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import write_rows


def test_a_benchmark_that_is_not_what_it_should_be(tmp_path):
    write_rows(tmp_path / "aime24.jsonl", [{"id": "1", "problem": "1+1", "answer": "2"}])
    with pytest.raises(DataError, match="does not hold the problems of AIME24"):
        load_benchmark("aime24", tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        load_benchmark("aime25", tmp_path)
    with pytest.raises(ConfigError, match="--benchmarks has 'aime26'"):
        load_benchmark("aime26")
    path = tmp_path / "own.jsonl"
    write_rows(path, [{"problem": "1+1", "answer": "$2$"}, {"problem": "2+2", "answer": 4}])
    assert load_benchmark(str(path)) == [Problem("0", "1+1", "2"), Problem("1", "2+2", "4")]
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


HALF = r"$\frac{1}{2}$"


def test_hub_data_sets_are_pinned_and_read(tmp_path, monkeypatch):
    revisions = [benchmark.revision for benchmark in BENCHMARKS.values()]
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in revisions)
    # The same loading code on local data sets with the hub's columns.
    rows = {
        "amc23": [{"question": f"q{n}", "answer": "27.0"} for n in range(40)],
        "gsm8k": [{"question": f"q{n}", "answer": "18 = ...\n#### 1,018"} for n in range(1319)],
        "olympiadbench": [{"question": f"q{n}", "final_answer": [HALF]} for n in range(674)],
    }
    expected = {"amc23": "27", "gsm8k": "1018", "olympiadbench": r"\frac{1}{2}"}
    for name, lines in rows.items():
        benchmark = BENCHMARKS[name]
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / f"{benchmark.split}.jsonl", lines)
        local = dataclasses.replace(benchmark, hub=str(tmp_path / name), subset=None)
        monkeypatch.setitem(BENCHMARKS, name, local)
        second = load_benchmark(name)[1]
        assert (second.id, second.problem, second.answer) == (f"{name}-1", "q1", expected[name])
    write_rows(tmp_path / "amc23" / "test.jsonl", rows["amc23"][:39])
    with pytest.raises(DataError, match="AMC23 has 39 problems; it should have 40"):
        load_benchmark("amc23")


@pytest.mark.parametrize("answer", ["\\frac{1}{", "proof"])
def test_answers_that_no_response_can_be_graded_against_are_refused(tmp_path, answer, capsys):
    """Every sample would count as wrong; a benchmark's copy, which has a checksum, keeps them."""
    rows = [{"problem": "What?", "answer": "12"}, {"problem": "Which?", "answer": answer}]
    write_rows(tmp_path / "own.jsonl", rows)
    with pytest.raises(DataError, match=r"own.jsonl has 1 answer that no response can be graded"):
        load_benchmark(str(tmp_path / "own.jsonl"))
    assert len(load_benchmark(str(tmp_path / "own.jsonl"), needs_answers=False)) == 2
    copy = [{"problem": f"q{number}", "answer": "(1,2)"} for number in range(39)]
    write_rows(tmp_path / "amc23.jsonl", [*copy, {"problem": "q", "answer": "7"}])
    unchecked = dataclasses.replace(BENCHMARKS["amc23"], checksum="")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BENCHMARKS, "amc23", unchecked)
        assert len(load_benchmark("amc23", tmp_path)) == 40
        write_rows(tmp_path / "amc23.jsonl", [*copy, {"problem": "q", "answer": answer}])
        load_benchmark("amc23", tmp_path)
    assert "warning: AMC23 has 1 answer that no response can be gr" in capsys.readouterr().err


def test_a_row_that_a_verifier_cannot_use_is_named(tmp_path):
    path = tmp_path / "own.jsonl"
    good = {"problem": "1 + 1?", "answer": "B", "options": ["1", "2", "3"]}
    write_rows(path, [good, {**good, "answer": "D"}])
    with pytest.raises(DataError, match=r"row 2 has an answer that is no option's letter: "):
        load_benchmark(str(path), grader="multiple_choice")
