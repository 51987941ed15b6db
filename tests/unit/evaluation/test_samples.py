"""The files of an evaluation: seeds, order and settings; and traces."""

import json
from itertools import product

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import run, traces
from openrlhf_swap.evaluation.samples import (
    SampleFiles,
    compare_settings,
    sampling,
    seed_of,
    set_aside_other_grades,
    write_settings,
)
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.runs.provenance import fingerprint


def test_seeds_depend_on_the_sample_alone():
    keys = product("ab", "xy", range(5), (0, 1))
    seeds = {seed_of(*key) for key in keys}
    assert len(seeds) == 40
    assert min(seeds) >= 0
    assert max(seeds) < 2**31
    assert seed_of("a", "x", 0, 0) == seed_of("a", "x", 0, 0)


def test_samples_have_seeds_of_their_own_unless_the_evaluation_has_none():
    settings = {"temperature": 0.6, "top_p": 1.0, "max_tokens": 8}
    seed = run.seed_or_none("3")
    seeded = sampling({**settings, "seed": seed}, "a", "x", 0)
    assert seeded == {**settings, "seed": seed_of("a", "x", 0, 3)}
    assert sampling({**settings, "seed": run.seed_or_none("none")}, "a", "x", 0) == settings


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts an evaluation of a model as far as the engine, in a working directory of its own."""
    monkeypatch.chdir(tmp_path)
    for folder in ("policy", "another", "out", "elsewhere"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.safetensors").write_text(folder)

    def start(model, *flags):
        words = ["--output", "out", "--swap.end_of_thought", "</t>", "--model", model]
        args = run.parse_flags([*words, *flags])
        origin = {"inputs": {"weights": [fingerprint(model)]}}
        compare_settings(args, origin)
        write_settings(args, origin, {})

    return start


def test_a_folder_holds_samples_of_one_model_and_one_setting(start, tmp_path):
    start("another")  # without a sample it binds to nothing
    start("policy")
    files = SampleFiles(tmp_path / "out", "own")
    write_rows(files.path("samples"), [{"id": "0", "sample": 0}])
    for name in ("policy", "./policy/", "elsewhere/../policy", str(tmp_path / "policy")):
        start(name)  # a model is known by its folder
    made = "but the samples in out were made with"
    for name in ("another", "hub/policy"):
        with pytest.raises(ConfigError, match=f"^--model is {name}.*, {made} .*policy"):
            start(name)
    with pytest.raises(ConfigError, match=f"^--max-model-len is 4096, {made}out it; use another"):
        start("policy", "--max-model-len", "4096")
    (tmp_path / "policy" / "model.safetensors").write_text("other")
    with pytest.raises(ConfigError, match=rf"^--model is policy \(SHA-256 .*{made}"):
        start("policy")


def test_grades_of_another_grader_are_set_aside(start, tmp_path):
    start("policy")
    files = SampleFiles(tmp_path / "out", "own")
    write_rows(files.path("samples"), [{"id": "0", "sample": 0}])
    grades = [{"id": "0", "sample": 0, "correct": True}]
    write_rows(files.path("grades"), grades)
    graders = {"own": {"name": "mine:f", "sha256": "a"}}
    settings_path = tmp_path / "out" / "run.json"
    settings = json.loads(settings_path.read_text())
    settings_path.write_text(json.dumps({**settings, "graders": graders}))
    assert set_aside_other_grades(tmp_path / "out", graders) == []
    other = {"own": {"name": "mine:f", "sha256": "b"}}
    (line,) = set_aside_other_grades(tmp_path / "out", other)
    assert line.startswith("the samples of own are graded again")
    assert not files.path("grades").exists()
    assert list(read_rows(tmp_path / "out" / "own.grades.jsonl.before")) == grades


def test_traces_join_problem_sample_and_grade(asked, tmp_path):
    output = tmp_path / "new" / "traces.jsonl"
    assert run_command(traces.main, [str(asked), "--output", str(output), "--samples", "1"]) == 0
    first, second = read_rows(output)
    assert first["id"] == "p"
    assert first["problem"] == "1 + 1 Think."  # as it was asked
    assert first["answer"] == "2"
    assert second["id"] == "q"
