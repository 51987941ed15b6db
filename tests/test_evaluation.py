"""Evaluation: statistics against hand-worked numbers, files against interruptions, and the real engine end to end."""

import dataclasses
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from conftest import POLICY, ROOT

from evaluation import figures, inspect, report, run, traces
from evaluation.benchmarks import BENCHMARKS, Problem, checksum, load_benchmark
from evaluation.grade import grade_file
from evaluation.samples import (
    SETTINGS,
    drop_unfinished_line,
    grades_path,
    merge_parts,
    part_path,
    problems_path,
    read_new_rows,
    read_rows,
    samples_path,
    seed_of,
    sort_file,
)
from evaluation.statistics import bootstrap_interval, majority_is_right, paired_difference, pass_at_k
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.rewards import Grader


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_pass_at_k():
    # 4 samples, 1 right: two of them are both wrong in C(3,2)/C(4,2) = 3/6 of the choices.
    assert pass_at_k(1, 4, 2) == 0.5
    assert pass_at_k(1, 4, 1) == 0.25
    assert pass_at_k(0, 4, 4) == 0.0
    assert pass_at_k(3, 4, 2) == 1.0
    with pytest.raises(ValueError, match="use 1 to 4"):
        pass_at_k(1, 4, 5)


def test_majority():
    assert majority_is_right(["1", "2", "2"], [False, True, True]) == 1.0
    assert majority_is_right(["1", "1", "2"], [False, False, True]) == 0.0
    # "1" and "2" tie: half. No answer gets no vote.
    assert majority_is_right(["1", "2", None, None], [False, True, False, False]) == 0.5
    assert majority_is_right([None], [False]) == 0.0


def test_bootstrap_intervals():
    # 100 problems, half of them right: the mean's standard error is .5/10 = .05, so the interval is .5 -+ 1.96 x .05.
    values = np.repeat([0.0, 1.0], 50)
    low, high = bootstrap_interval(values)
    assert low == pytest.approx(0.402, abs=0.015)
    assert high == pytest.approx(0.598, abs=0.015)
    assert bootstrap_interval(np.ones(5)) == (1.0, 1.0)
    # Pairing removes what both share: a constant gain has no spread.
    mean, low, high = paired_difference(values, values + 0.25)
    assert (mean, low, high) == pytest.approx((0.25, 0.25, 0.25))


def test_a_benchmark_that_is_not_what_it_should_be(tmp_path):
    write_rows(tmp_path / "aime24.jsonl", [{"id": "1", "problem": "1+1", "answer": "2"}])
    with pytest.raises(DataError, match="does not hold the problems of AIME24"):
        load_benchmark("aime24", tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        load_benchmark("aime25", tmp_path)
    with pytest.raises(ConfigError, match="--benchmarks has 'aime26'"):
        load_benchmark("aime26")
    path = write_rows(tmp_path / "own.jsonl", [{"problem": "1+1", "answer": "$2$"}, {"problem": "2+2", "answer": 4}])
    assert load_benchmark(str(path)) == [Problem("0", "1+1", "2"), Problem("1", "2+2", "4")]
    # A line separator inside a text does not end the line.
    path.write_text(json.dumps({"id": "a", "problem": "1\u2028+1", "answer": "2"}, ensure_ascii=False) + "\n")
    assert load_benchmark(str(path)) == [Problem("a", "1\u2028+1", "2")]
    write_rows(path, [{"id": "a", "problem": "1", "answer": "2"}] * 2)
    with pytest.raises(DataError, match="1 ids twice"):
        load_benchmark(str(path))


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


def test_the_checksum_ignores_order_and_white_space():
    assert checksum(["a b", "c"]) == checksum(["c", "a\n b"])
    assert checksum(["ab"]) != checksum(["a", "b"])


@pytest.mark.skipif("BENCHMARK_DATA" not in os.environ, reason="BENCHMARK_DATA names no folder with local copies")
@pytest.mark.parametrize("name", BENCHMARKS)
def test_gold_answers_are_right_against_themselves(name):
    problems = load_benchmark(name, Path(os.environ["BENCHMARK_DATA"]))
    grader = Grader()
    grades = grader.grade_many([(f"\\boxed{{{problem.answer}}}", problem.answer) for problem in problems])
    grader.close()
    wrong = {problem.id for problem, grade in zip(problems, grades, strict=True) if not grade.correct}
    assert wrong == set()


def test_seeds_depend_on_the_sample_alone():
    seeds = {seed_of(b, p, n, s) for b in "ab" for p in "xy" for n in range(5) for s in (0, 1)}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of("a", "x", 0, 0) == seed_of("a", "x", 0, 0)


@pytest.mark.parametrize("broken", ['{"id": "b", "sam', "x" * 200_000])
def test_an_unfinished_line_is_cut_off(tmp_path, broken):
    path = write_rows(tmp_path / "f.jsonl", [{"id": "a", "sample": 0}])
    whole = path.read_text()
    path.write_text(whole + broken)
    drop_unfinished_line(path)
    assert path.read_text() == whole
    path.write_text(broken)
    drop_unfinished_line(path)
    assert path.read_text() == ""


def test_a_growing_file_is_read_once(tmp_path):
    path = tmp_path / "f.jsonl"
    assert read_new_rows(path, 0) == ([], 0)
    write_rows(path, [{"id": "é"}, {"id": "b"}])
    with open(path, "a") as file:
        file.write('{"id": ')
    rows, offset = read_new_rows(path, 0)
    assert [row["id"] for row in rows] == ["é", "b"]
    with open(path, "a") as file:
        file.write('"c"}\n')
    rows, offset = read_new_rows(path, offset)
    assert ([row["id"] for row in rows], offset) == (["c"], path.stat().st_size)


def test_files_are_sorted_by_problem_and_sample(tmp_path):
    rows = [{"id": i, "sample": n, "text": "é" * n} for i in ("b", "a", "c") for n in range(4)]
    shuffled = random.Random(0).sample(rows, len(rows))
    path = write_rows(tmp_path / "f.jsonl", shuffled)
    sort_file(path, {"b": 0, "a": 1, "c": 2})
    assert list(read_rows(path)) == rows


@pytest.fixture
def evaluated(tmp_path):
    """Two evaluations of two problems with two samples each, made by hand."""
    problems = [Problem("p", "1+1", "2"), Problem("q", "2+2", "4")]
    texts = {
        "base": [
            ("p", 0, "a</think>\\boxed{2}", 10),
            ("p", 1, "a</think>\\boxed{3}", 30),
            ("q", 0, "no answer \\boxed{4}", 50),
            ("q", 1, "I was cut off", 70),
        ],
        "short": [
            (i, n, text, tokens)
            for i, text, tokens in (("p", "a</think>\\boxed{2}", 5), ("q", "b</think>\\boxed{4.0}", 15))
            for n in (0, 1)
        ],
    }
    grader = Grader()
    for name, rows in texts.items():
        folder = tmp_path / name
        folder.mkdir()
        samples = [
            {
                "id": i,
                "sample": n,
                "text": text,
                "tokens": t,
                "thinking_tokens": t - 2,
                "truncated": text == "I was cut off",
            }
            for i, n, text, t in rows
        ]
        write_rows(samples_path(folder, "own"), samples)
        grade_file(folder, "own", problems, grader)
        (folder / "run.json").write_text(json.dumps({setting: "" for setting in SETTINGS} | {"suffix": " Think."}))
    grader.close()
    return tmp_path


def test_measures_by_hand(evaluated):
    values = report.measure(evaluated / "base")["own"].values
    # Right: p0 and q0. Tokens 10 + 50 right, 30 + 70 wrong; means of the problems 20 and 60.
    assert (values["accuracy"], values["tokens"], values["tokens_median"]) == (0.5, 40, 40)
    assert (values["tokens_correct"], values["tokens_wrong"]) == (30, 50)
    assert (values["tokens_thinking"], values["tokens_answer"], values["truncated"]) == (38, 2, 0.25)
    # pass@2: both problems have a right sample. maj@2: p ties between 2 and 3 (half), q has one vote (right).
    assert (values["pass@2"], values["maj@2"]) == (1.0, 0.75)
    assert values["accuracy_per_1k_tokens"] == 0.5 / 0.04
    assert values["grader_no_answer"] == 0.25
    rows = {(row["id"], row["sample"]): row for row in read_rows(grades_path(evaluated / "base", "own"))}
    assert rows["q", 0]["answer"] == rows["q", 0]["answer_anywhere"] == "4"


def test_tables(evaluated, capsys):
    folders = [str(evaluated / name) for name in ("base", "short")]
    assert report.main([*folders, "--format", "markdown", "--paper", "1.5B"]) == 0
    text = capsys.readouterr().out
    assert "| base | own | 2 | 50.0 |" in text
    assert "| short - base | own | 2 | +50.0 (+50.0 to +50.0) | -30 (-45 to -15) |" in text
    assert "not measured here" in text
    assert "SWAP (paper)" in text
    assert report.main([*folders, "--format", "latex"]) == 0
    assert r"short & 100.0 & 10 & 100.0 & 10 \\" in capsys.readouterr().out
    assert report.main([*folders, "--format", "csv"]) == 0
    assert capsys.readouterr().out.splitlines()[1].startswith("base,own,2.0,2.0,0.5,")
    # An answer in the thought alone: nothing is boxed after it.
    text = "\\boxed{2}</think>so 2"
    sample = {"id": "p", "sample": 2, "text": text, "tokens": 9, "thinking_tokens": 5, "truncated": False}
    with open(samples_path(evaluated / "base", "own"), "a") as file:
        file.write(json.dumps(sample) + "\n")
    grader = Grader()
    grade_file(evaluated / "base", "own", [Problem("p", "1+1", "2")], grader)
    grader.close()
    assert report.main([str(evaluated / "base"), "--disagreements"]) == 0
    assert "own p sample 2: 'so 2' after the thought, '2' anywhere (right)" in capsys.readouterr().out
    (evaluated / "empty").mkdir()
    assert report.main([str(evaluated / "empty")]) == 2
    assert "holds no graded samples" in capsys.readouterr().err


def test_evaluations_that_were_not_made_alike_are_not_compared_in_silence(evaluated, tmp_path, capsys):
    settings = {"model": "a", "temperature": 0.6, "top_p": 0.95, "max_tokens": 9, "seed": 0, "suffix": ""}
    other = tmp_path / "elsewhere" / "base"
    shutil.copytree(evaluated / "base", other)
    (evaluated / "base" / "run.json").write_text(json.dumps(settings))
    (other / "run.json").write_text(json.dumps({**settings, "model": "b", "seed": 1, "suffix": " Think."}))
    assert report.main([str(evaluated / "base"), str(other)]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"warning: --suffix is '' in {evaluated / 'base'}, ' Think.' in {other}: do not compare them\n"
    assert str(other) in shown.out and str(evaluated / "base") in shown.out  # both are called base
    (other / "run.json").write_text(json.dumps({**settings, "model": "b", "seed": 1}))
    assert report.main([str(evaluated / "base"), str(other)]) == 0
    assert capsys.readouterr().err == ""


def test_settings_of_a_folder_do_not_change(tmp_path, capsys):
    flags = ["--model", str(POLICY), "--output", str(tmp_path / "out"), "--samples", "1"]
    problems = write_rows(tmp_path / "own.jsonl", [{"problem": "1", "answer": "1"}])
    (tmp_path / "out").mkdir()
    run.check_settings(run.parse([*flags, "--benchmarks", str(problems)]))
    assert run.main([*flags, "--benchmarks", str(problems), "--temperature", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: --temperature is 1.0, but the samples in")


def scored(problem, correct, gains, tokens, benchmark="own"):
    """A line of `openrlhf_swap.score`: steps of ten tokens with these gains."""
    return {
        "benchmark": benchmark,
        "problem": problem,
        "answer": "2",
        "response": "".join(f"step {k}\n" for k in range(len(gains))) + "</think>2",
        "correct": correct,
        "tokens": tokens,
        "step_ends": [10 * k + 9 for k in range(len(gains))],
        "answer_logprobs": [-3.0 + sum(gains[:k]) for k in range(len(gains) + 1)],
        "gains": gains,
        "local_gains": gains,
        "steps": [f"step {k}\n" for k in range(len(gains))],
    }


def test_penalties_of_the_viewer_by_hand():
    # Right: 100 and 200 tokens, median 150, so the longer one has P = 50/150 = 1/3, on equal gains evenly: 1/6 a step.
    rows = [scored("p", True, [1.0, 1.0], 100), scored("p", True, [1.0, 1.0], 200), scored("p", False, [1.0], 900)]
    for row in rows:
        row["length"] = row["tokens"]
    inspect.add_penalties(rows, length_coef=1.0, temperature=1.0)
    assert [row["penalties"] for row in rows] == [[0, 0], pytest.approx([1 / 6, 1 / 6]), [0]]


def test_the_viewer_is_one_file_without_requests(tmp_path, capsys):
    base = write_rows(tmp_path / "base.scored.jsonl", [scored("1+1 </script>?", True, [0.5, 0.1], 20)])
    swap = write_rows(
        tmp_path / "swap.scored.jsonl", [scored("1+1 </script>?", True, [0.6], 10), scored("x", False, [0.1], 10)]
    )
    page = tmp_path / "page.html"
    assert inspect.main(["--traces", str(base), str(swap), "--output", str(page)]) == 0
    html = page.read_text()
    assert re.search(r"(src|href)=|https?://(?!www\.w3\.org)|@import|fetch\(", html) is None
    embedded = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)[1]
    data = json.loads(embedded)
    assert data["names"] == ["base", "swap"]
    first, second = data["problems"]
    assert first["problem"] == "1+1 </script>?"
    assert [len(column) for column in first["columns"]] == [1, 1]
    assert [len(column) for column in second["columns"]] == [0, 1]
    step = first["columns"][0][0]["steps"][1]
    assert step == {"text": "step 1\n", "tokens": 10, "gain": 0.1, "penalty": 0}
    assert first["columns"][0][0]["rest"] == "</think>2"
    write_rows(base, [{"problem": "p"}])
    assert inspect.main(["--traces", str(base), "--output", str(page)]) == 2
    assert "holds no scored traces" in capsys.readouterr().err


def test_traces_join_problem_sample_and_grade(evaluated, tmp_path):
    folder = evaluated / "base"
    write_rows(
        problems_path(folder, "own"),
        [{"id": "p", "problem": "1+1", "answer": "2"}, {"id": "q", "problem": "2+2", "answer": "4"}],
    )
    output = tmp_path / "traces.jsonl"
    assert traces.main([str(folder), "--output", str(output), "--samples", "1"]) == 0
    rows = list(read_rows(output))
    assert [(row["id"], row["problem"], row["answer"], row["correct"]) for row in rows] == [
        ("p", "1+1 Think.", "2", True),  # as it was asked
        ("q", "2+2 Think.", "4", True),
    ]


def test_parts_of_several_engines_are_merged(tmp_path):
    path = write_rows(tmp_path / "own.samples.jsonl", [{"id": "a", "sample": 0}])
    for number in (0, 1):
        write_rows(part_path(path, number), [{"id": "b", "sample": number}])
    with open(part_path(path, 1), "a") as file:
        file.write('{"unfinished')
    merge_parts(path)
    assert [(row["id"], row["sample"]) for row in read_rows(path)] == [("a", 0), ("b", 0), ("b", 1)]
    assert list(tmp_path.glob("*.part*")) == []


def test_the_pareto_front():
    # (tokens, accuracy): the second costs more and is worse than the first, the third is dearer and better.
    assert figures.pareto_front([(10, 50), (20, 40), (30, 60), (10, 45)]) == [0, 2]


def test_accuracy_within_a_budget(evaluated):
    # base: right with 10 and with 50 tokens, four samples.
    assert figures.accuracy_within(evaluated / "base", "own", [9, 10, 49, 50]) == [0, 0.25, 0.25, 0.5]


def test_every_figure_is_drawn(evaluated, tmp_path):
    rows = [scored("p", True, [0.6, 0.1], 20 + n) for n in range(12)]
    file = write_rows(tmp_path / "base.scored.jsonl", rows)
    metrics = write_rows(
        tmp_path / "metrics.jsonl",
        # Step 2 done again after a resume, step 3 skipped for its scores.
        [{"step": s, "swap/accuracy": 0.5, "swap/response_length": 9} for s in (1, 2, 2)] + [{"step": 3}],
    )
    for value in (0.1, 0.3):
        for seed in (1, 2):
            folder = tmp_path / "sweep" / f"theta_{value}" / f"seed_{seed}"
            folder.mkdir(parents=True)
            (folder / "result.json").write_text(json.dumps({"accuracy": value, "tokens": 100 - seed}))
    inputs = {
        "pareto": [evaluated / "base", evaluated / "short"],
        "budget": [evaluated / "base", evaluated / "short"],
        "gains": [file],
        "density": [file],
        "sweep": [tmp_path / "sweep"],
        "dynamics": [metrics],
    }
    assert inputs.keys() == figures.FIGURES.keys()
    for name, paths in inputs.items():
        assert figures.main([name, *map(str, paths), "--output", str(tmp_path / "out" / name)]) == 0
        for ending, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
            assert (tmp_path / "out" / f"{name}.{ending}").read_bytes().startswith(magic)
    assert figures.main(["sweep", str(tmp_path / "out"), "--output", str(tmp_path / "x")]) == 2


def evaluation_command(problems, output):
    command = [sys.executable, "-m", "evaluation.run", "--model", str(POLICY), "--benchmarks", str(problems)]
    command += ["--output", str(output), "--samples", "4", "--temperature", "1", "--top-p", "1"]
    return [*command, "--max-tokens", "320", "--max-model-len", "400"]


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_to_the_same_file(tmp_path, prompts_file):
    long = json.dumps({"problem": "What is 1 + 1?" * 200, "answer": "2"}) + "\n"
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(prompts_file.read_text() + long)
    prompts_file = prompts
    subprocess.run(evaluation_command(prompts_file, tmp_path / "whole"), cwd=ROOT, check=True, capture_output=True)
    whole = samples_path(tmp_path / "whole", "prompts")
    rows = list(read_rows(whole))
    assert len(rows) == 65 * 4
    # The last problem does not fit the context: empty responses, counted as cut off.
    assert [(row["text"], row["truncated"]) for row in rows[-4:]] == [("", True)] * 4
    assert all(row["tokens"] > 0 for row in rows[:-4])

    killed = subprocess.Popen(
        evaluation_command(prompts_file, tmp_path / "killed"),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    path = samples_path(tmp_path / "killed", "prompts")
    while killed.poll() is None and not (path.exists() and path.stat().st_size > whole.stat().st_size / 4):
        time.sleep(0.02)
    killed.kill()
    killed.wait()
    before = len(list(read_rows(path)))
    assert 0 < before < 65 * 4
    done = subprocess.run(
        evaluation_command(prompts_file, tmp_path / "killed"), cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert f"[evaluation] {before} of 260 samples are there" in done.stdout
    assert path.read_text() == whole.read_text()
    assert len(list(read_rows(grades_path(tmp_path / "killed", "prompts")))) == 65 * 4
