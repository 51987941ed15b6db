"""The commands as they are started, and the one that evaluates."""

import json
import shlex
import shutil
import sys
from types import SimpleNamespace

import pytest
import ray
import torch
from support.paths import POLICY, ROOT

from openrlhf_swap.__main__ import COMMANDS, main
from openrlhf_swap.command import run_command
from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import generate, run
from openrlhf_swap.evaluation.run import check_unchanged
from openrlhf_swap.evaluation.samples import (
    compare_settings,
    read_settings,
    rows_path,
    write_settings,
)
from openrlhf_swap.files import appending, read_rows, write_rows
from openrlhf_swap.runs.process import locked
from openrlhf_swap.runs.provenance import made_of

ONE = [{"id": "p", "problem": "1 + 1?", "answer": "2"}]
TWO = [*ONE, {"id": "q", "problem": "1 + 2?", "answer": "3"}]


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("eval ")])
def test_a_command_explains_itself(name, capsys):
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    assert capsys.readouterr().out.startswith(f"usage: openrlhf-swap {name} [-h]")


def test_no_module_has_the_name_of_one_of_the_standard_library():
    """Python looks for modules in the folder of a script before the standard library."""
    folders = ("openrlhf_swap", "evaluation", "examples", "benchmarks", "scripts", "tests")
    modules = [
        path.parent if path.stem == "__init__" else path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if path.stem != "__main__"
    ]
    assert [str(path) for path in modules if path.stem in sys.stdlib_module_names] == []


def test_what_an_evaluation_was_made_of_is_written_and_compared(tmp_path, capsys):
    policy = shutil.copytree(POLICY, tmp_path / "policy")
    problems = tmp_path / "own.jsonl"
    write_rows(problems, [{"problem": "1", "answer": "1"}])
    flags = [
        "--model",
        str(policy),
        "--output",
        str(tmp_path / "out"),
        "--benchmarks",
        str(problems),
    ]

    def start(*more):
        """As far as the engine, which is not started."""
        argv = [*flags, *more]
        args = run.parse(argv)
        origin = made_of("openrlhf-swap eval run", argv, weights=args.model)
        before = compare_settings(args, origin)
        (tmp_path / "out").mkdir(exist_ok=True)
        write_settings(args, origin, before, ["own"])
        return json.loads((tmp_path / "out" / "run.json").read_text())

    first = start()
    write_rows(rows_path("samples", tmp_path / "out", "own"), [{"id": "0", "sample": 0}])
    assert shlex.split(first["command"])[3:] == flags
    assert first["inputs"]["weights"][0]["files"].keys() >= {"model.safetensors", "config.json"}
    again = start("--samples", "2")
    assert (shlex.split(again["command"])[-2:], again["earlier_commands"]) == (
        ["--samples", "2"],
        [first["command"]],
    )
    weights = policy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert run_command(run.main, flags) == 2
    message = capsys.readouterr().err
    assert (
        message.startswith(f"error: --model is {policy} (SHA-256 ")
        and "but the samples in" in message
    )


def test_the_end_of_the_thought_is_the_folders_or_the_models(tmp_path, capsys):
    flags = ["--model", str(POLICY), "--output", str(tmp_path)]
    args = run.parse(flags)
    args.end_of_thought = run.end_of_thought(args)
    assert args.end_of_thought == "</think>"
    assert (
        "thought: '<think>' to '</think>' (r1, opened by the chat template)"
        in capsys.readouterr().out
    )
    args.end_of_thought = run.end_of_thought(
        run.parse([*flags, "--swap.end_of_thought", "[/THINK]"])
    )
    write_settings(args, made_of("openrlhf-swap eval run", [], weights=str(POLICY)), {}, [])
    assert (
        run.end_of_thought(run.parse(flags)) == "</think>"
    )  # nothing was sampled with the other one
    write_rows(rows_path("samples", tmp_path, "own"), [{"id": "0", "sample": 0}])
    assert run.end_of_thought(run.parse(flags)) == "[/THINK]"


@pytest.fixture
def evaluate(tmp_path, monkeypatch, capsys, grader):
    """Starts an evaluation of some rows, where each response is 2; returns the exit status and the
    last line.

    The real grader is started once for all: its processes take a second each.
    """
    flags = [
        "--model",
        str(POLICY),
        "--output",
        str(tmp_path / "out"),
        "--samples",
        "1",
        "--verbose",
    ]

    def sample(args, tasks, _):
        counts = {"tokens": 9, "thinking_tokens": 5, "truncated": False}
        for task in tasks:
            with appending(rows_path("samples", args.output, task.benchmark)) as append:
                append(
                    {"id": task.id, "sample": task.sample, "text": "a</think>\\boxed{2}", **counts}
                )

    def start(rows, *more):
        write_rows(tmp_path / "own.jsonl", rows)
        status = run_command(run.main, [*flags, "--benchmarks", str(tmp_path / "own.jsonl"), *more])
        shown = capsys.readouterr()
        return status, (shown.err if status else shown.out).splitlines()[-1]

    kept = SimpleNamespace(grade_many=grader.grade_many, close=lambda: None)
    monkeypatch.setattr(run, "Grader", lambda verifier: kept)
    monkeypatch.setattr(run, "sample", sample)
    return start


@pytest.mark.parametrize(
    ("flag", "value", "remedy"),
    [
        ("--temperature", "-1.0", "use at least 0"),
        ("--temperature", "nan", "use at least 0"),
        ("--top-p", "0.0", "use more than 0 and at most 1"),
        ("--top-p", "1.1", "use more than 0 and at most 1"),
        ("--limit", "0", "use at least 1"),
        ("--limit", "-1", "use at least 1"),
    ],
)
def test_a_number_out_of_range_is_refused_before_anything_is_written(
    evaluate, tmp_path, flag, value, remedy
):
    assert evaluate(ONE, flag, value) == (2, f"error: {flag} is {value}; {remedy}")
    assert not (tmp_path / "out").exists()


def no_engine(*_):
    raise ConfigError("no engine")


def test_a_start_that_fails_claims_nothing(evaluate, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(run, "sample", no_engine)
        assert evaluate(ONE, "--temperature", "1") == (2, "error: no engine")
    assert evaluate(ONE)[0] == 0
    assert read_settings(tmp_path / "out")["temperature"] == 0.6
    status, line = evaluate(ONE, "--temperature", "1")  # now there is a sample
    assert status == 2 and line.startswith("error: --temperature is 1.0, but the samples in")


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"id": "0"},
            "which has no problem 'p', but {out} holds samples of it; use another --output",
        ),
        (
            {"problem": "4 / 2?"},
            "whose problem 'p' has another text than its samples in {out} answer; use another --output",
        ),
        (
            {"answer": "3"},
            "whose problem 'p' has another answer than {out} was graded by; add --grade-again",
        ),
    ],
)
def test_problems_that_changed_under_their_samples_are_refused(evaluate, tmp_path, change, fault):
    assert evaluate(ONE)[0] == 0
    files = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert evaluate([ONE[0] | change]) == (
        2,
        f"error: --benchmarks has own, {fault.format(out=tmp_path / 'out')}",
    )
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == files


def test_local_copies_are_no_continuation_of_the_hubs(tmp_path):
    write_rows(rows_path("samples", tmp_path, "math500"), [{"id": "math500-0", "sample": 0}])
    args = run.parse(["--model", "m", "--output", str(tmp_path), "--data", "copies"])
    with pytest.raises(ConfigError, match="math500, which in copies has no problem 'math500-0'"):
        check_unchanged(args, "math500", [Problem("7", "1 + 1?", "2")])


def test_grading_again_takes_a_corrected_answer(evaluate, tmp_path):
    wrong = [{**ONE[0], "answer": "3"}]
    assert evaluate(wrong)[1].split()[:4] == ["out", "own", "1", "0.0"]
    forced = rows_path("forced", tmp_path / "out", "own")
    write_rows(forced, [{"budget": 9, "accuracy": 0.0}])  # by the earlier grades
    assert evaluate(ONE, "--grade-again")[1].split()[:4] == ["out", "own", "1", "100.0"]
    assert not forced.exists()
    write_rows(forced, [{"budget": 9, "accuracy": 1.0}])
    assert evaluate(ONE)[0] == 0 and forced.exists()


def test_a_start_that_fails_leaves_no_grades_by_earlier_answers(evaluate, monkeypatch):
    assert evaluate([{**ONE[0], "answer": "3"}])[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(run, "sample", no_engine)
        assert evaluate(ONE, "--grade-again", "--samples", "2") == (2, "error: no engine")
    assert evaluate(ONE)[1].split()[:4] == ["out", "own", "1", "100.0"]


def test_accuracies_at_budgets_go_when_samples_are_left_to_grade(tmp_path, capsys):
    rows, path = [{"id": "p", "sample": n} for n in range(2)], rows_path("forced", tmp_path, "own")
    write_rows(rows_path("samples", tmp_path, "own"), rows)
    said = "there are samples to grade; run openrlhf-swap eval forced again"
    removed = f"[evaluation] own.forced.jsonl removed: {said}\n"
    for graded, expected in (
        (rows, (True, "")),
        (rows[:1], (False, removed)),
        ([], (False, removed)),
    ):
        write_rows(rows_path("grades", tmp_path, "own"), graded)
        write_rows(path, [{"budget": 9, "accuracy": 0.5}])
        run.discard_forced(tmp_path, "own")
        assert (path.exists(), capsys.readouterr().out) == expected


def test_a_limit_may_grow_and_shrink(evaluate, tmp_path):
    assert evaluate(TWO, "--limit", "1")[1].split()[:4] == ["out", "own", "1", "100.0"]
    corrected = [
        *ONE,
        {**TWO[1], "problem": "1 + 3?", "answer": "4"},
    ]  # without samples: may change
    longer = [*corrected, {"id": "r", "problem": "2?", "answer": "2"}]
    assert evaluate(longer)[1].split()[2:4] == ["3", "66.7"]
    assert evaluate(corrected[:1])[0] == 2
    assert evaluate(longer, "--limit", "1")[1].split()[2:4] == ["3", "66.7"]
    # What has samples keeps its problem, and with it the texts that later starts are compared with.
    assert [row["id"] for row in read_rows(rows_path("problems", tmp_path / "out", "own"))] == [
        "p",
        "q",
        "r",
    ]
    assert evaluate([*TWO, longer[2]], "--limit", "1")[0] == 2


@pytest.mark.parametrize(
    ("there", "cpu", "cluster", "message"),
    [
        (
            5,
            False,
            False,
            "--engines 3 x --tensor-parallel-size 2 takes 6 GPUs, but 5 are here; use fewer",
        ),
        (6, False, False, "Ray would start"),
        (0, True, False, "Ray would start"),
        (0, False, True, "Ray would start"),
    ],
)
def test_gpus_that_are_not_there_are_said_before_ray_waits_for_them(
    tmp_path, monkeypatch, there, cpu, cluster, message
):
    def start(**_):
        raise ConfigError("Ray would start")

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(generate, "is_cpu_build", lambda: cpu)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: there)
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if cluster:
        monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    flags = [
        "--model",
        str(POLICY),
        "--output",
        str(tmp_path),
        "--engines",
        "3",
        "--tensor-parallel-size",
        "2",
    ]
    with pytest.raises(ConfigError, match=f"^{message}"):
        run.sample(run.parse(flags), [], 0)


def test_a_second_evaluation_into_a_folder_is_refused(tmp_path, capsys):
    words = ["--model", str(POLICY), "--output", str(tmp_path / "eval")]
    with locked({"--output": tmp_path / "eval"}):
        assert run_command(run.main, words) == 2
    message = f"error: --output is {tmp_path / 'eval'}, where another run is under way (run.lock); wait until it has"
    assert capsys.readouterr().err.startswith(message)
