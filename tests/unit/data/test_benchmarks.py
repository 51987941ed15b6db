"""Benchmarks: what is read from files and from the hub, and what is refused."""

import dataclasses
import json
import os
import re
from pathlib import Path

import pytest

from openrlhf_swap.data.benchmarks import BENCHMARKS, PAPER_BENCHMARKS, Problem, checksum, load_benchmark
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.files import write_rows
from openrlhf_swap.rewards import Grader


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
    write_rows(path, [{"problem": "1+1", "answer": ["$2$"]}, {"problem": "x^2=4", "answer": ["2,-2"]}])
    assert [problem.answer for problem in load_benchmark(str(path))] == ["2", "2,-2"]
    # A line separator inside a text does not end the line.
    path.write_text(json.dumps({"id": "a", "problem": "1\u2028+1", "answer": "2"}, ensure_ascii=False) + "\n")
    assert load_benchmark(str(path)) == [Problem("a", "1\u2028+1", "2")]
    write_rows(path, [{"id": "a", "problem": "1", "answer": "2"}] * 2)
    with pytest.raises(DataError, match="1 duplicate ids"):
        load_benchmark(str(path))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b'{"problem": null, "answer": "2"}', ", row 2: problem is null; give every row a problem and an answer"),
        (b'{"answer": "2"}', ", row 2: problem is null"),
        (b'{"problem": " ", "answer": "2"}', ', row 2: problem is " "'),
        (b'{"problem": "1", "answer": ""}', ', row 2: answer is ""; give every row a problem and an answer'),
        (b'{"problem": "1", "answer": null}', ", row 2: answer is null"),
        (b'{"problem": "1", "answer": {"a": 1}}', ', row 2: answer is {"a": 1}'),
        (b'{"problem": "1", "answer": ["3", ""]}', ', row 2: answer is ["3", ""]; give every row a problem and'),
        (b'{"problem": "1", "answer": []}', ", row 2: answer is []"),
        (b'{"problem": "1", "answer": "\xe9"}', " cannot be read: row 2: not UTF-8 (byte 0xe9 at position 29"),
        (b"\0" * 512, " cannot be read: row 2: zero bytes, as a crash leaves them"),
    ],
)
def test_a_problem_that_nothing_can_solve_is_refused(tmp_path, row, message):
    path = tmp_path / "own.jsonl"
    path.write_bytes(b'{"problem": "1+1", "answer": "2"}\n' + row + b"\n")
    with pytest.raises(DataError) as error:
        load_benchmark(str(path))
    assert str(error.value).startswith(str(path) + message)


def test_hub_data_sets_are_pinned_and_read(tmp_path, monkeypatch):
    assert all(re.fullmatch("[0-9a-f]{40}", benchmark.revision) for benchmark in BENCHMARKS.values())
    # The same loading code on local data sets with the hub's columns.
    rows = {
        "amc23": [{"question": f"q{n}", "answer": "27.0"} for n in range(40)],
        "gsm8k": [{"question": f"q{n}", "answer": "1,000 + 18 = ...\n#### 1,018"} for n in range(1319)],
        "olympiadbench": [{"question": f"q{n}", "final_answer": [r"$\frac{1}{2}$"]} for n in range(674)],
    }
    expected = {"amc23": "27", "gsm8k": "1018", "olympiadbench": r"\frac{1}{2}"}
    for name, lines in rows.items():
        benchmark = BENCHMARKS[name]
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name / f"{benchmark.split}.jsonl", lines)
        local = dataclasses.replace(benchmark, hub=str(tmp_path / name), subset=None)
        monkeypatch.setitem(BENCHMARKS, name, local)
        problems = load_benchmark(name)
        assert (problems[1].id, problems[1].problem, problems[1].answer) == (f"{name}-1", "q1", expected[name])
    write_rows(tmp_path / "amc23" / "test.jsonl", rows["amc23"][:39])
    with pytest.raises(DataError, match="AMC23 has 39 problems; it should have 40"):
        load_benchmark("amc23")


def test_a_data_set_that_the_hub_does_not_give_has_a_remedy():
    """The tests run without the hub (HF_HUB_OFFLINE), for which datasets gives another reason."""
    with pytest.raises(DataError) as refused:
        load_benchmark("gpqa_diamond")
    assert str(refused.value).startswith("Idavidrein/gpqa cannot be loaded (")
    assert str(refused.value).endswith(
        "); give a folder with a local copy: --data. If https://huggingface.co/datasets/Idavidrein/gpqa has "
        "conditions, accept them and log in (hf auth login, or HF_TOKEN)"
    )


def test_the_checksum_ignores_order_and_white_space():
    assert checksum(["a b", "c"]) == checksum(["c", "a\n b"])
    assert checksum(["ab"]) != checksum(["a", "b"])


@pytest.mark.skipif("BENCHMARK_DATA" not in os.environ, reason="BENCHMARK_DATA names no folder with local copies")
@pytest.mark.parametrize("name", [*PAPER_BENCHMARKS, "gsm8k"])
def test_reference_answers_are_correct_against_themselves(name):
    problems = load_benchmark(name, Path(os.environ["BENCHMARK_DATA"]))
    grader = Grader()
    grades = grader.grade_many([(f"\\boxed{{{problem.answer}}}", problem.answer) for problem in problems])
    grader.close()
    wrong = {problem.id for problem, grade in zip(problems, grades, strict=True) if not grade.correct}
    assert wrong == set()
