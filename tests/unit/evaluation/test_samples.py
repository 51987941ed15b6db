"""The files of an evaluation: seeds, order and settings; and traces, which `openrlhf_swap.score`
reads.
"""

import json
import random

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.evaluation import run, traces
from openrlhf_swap.evaluation.samples import (
    compare_settings,
    rows_path,
    seed_of,
    settings_path,
    sort_file,
    write_settings,
)
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.runs.provenance import fingerprint

OUT = ("--output", "out", "--swap.end_of_thought", "</t>")


def test_seeds_depend_on_the_sample_alone():
    seeds = {seed_of(b, p, n, s) for b in "ab" for p in "xy" for n in range(5) for s in (0, 1)}
    assert len(seeds) == 40
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_of("a", "x", 0, 0) == seed_of("a", "x", 0, 0)


def test_files_are_sorted_by_problem_and_sample(tmp_path):
    rows = [{"id": i, "sample": n, "text": "é" * n} for i in ("b", "a", "c") for n in range(4)]
    path = tmp_path / "f.jsonl"
    # An earlier version merged samples twice: they are kept once.
    for written in (random.Random(0).sample(rows, len(rows)), [rows[1], *rows, rows[0]]):
        write_rows(path, written)
        sort_file(path, {"b": 0, "a": 1, "c": 2})
        assert list(read_rows(path)) == rows


@pytest.fixture
def sampled(tmp_path, monkeypatch):
    """A working directory with a model, and an evaluation of it that was started there with
    relative paths.
    """
    monkeypatch.chdir(tmp_path)
    for folder in ("policy", "another", "aime24", "out", "elsewhere"):
        (tmp_path / folder).mkdir()
    for folder in ("policy", "another"):
        (tmp_path / folder / "model.safetensors").write_text(folder)
    write_rows(tmp_path / "own.jsonl", [{"problem": "1", "answer": "1"}])
    args = run.parse(["--model", "policy", "--benchmarks", "aime24", "own.jsonl", *OUT])
    write_settings(
        args, {"inputs": {"weights": [fingerprint("policy")]}, "command": "first"}, {}, []
    )
    write_rows(rows_path("samples", tmp_path / "out", "own"), [{"id": "0", "sample": 0}])
    return tmp_path


def started_again(*words):
    """The settings found in the folder, if a start with these flags may continue it."""
    args = run.parse(words)
    return compare_settings(args, {"inputs": {"weights": [fingerprint(args.model)]}})


def test_a_model_is_known_by_its_folder_however_it_is_named(sampled):
    names = ("policy", "./policy/", "elsewhere/../policy", str(sampled / "policy"))
    assert [started_again(*OUT, "--model", name)["command"] for name in names] == ["first"] * len(
        names
    )
    for name in ("another", "hub/policy"):
        with pytest.raises(
            ConfigError, match=f"^--model is {name}.*, but the samples in out were made with policy"
        ):
            started_again(*OUT, "--model", name)


def test_the_context_is_a_setting(sampled):
    flags = (*OUT, "--model", "policy")
    message = "^--max-model-len is 4096, but the samples in out were made without it; use another --output"
    with pytest.raises(ConfigError, match=message):
        started_again(*flags, "--max-model-len", "4096")
    path = settings_path(sampled / "out")
    settings = json.loads(path.read_text())
    assert settings["max_model_len"] is None
    path.write_text(json.dumps({**settings, "max_model_len": 4096}))
    assert started_again(*flags, "--max-model-len", "4096")["max_model_len"] == 4096
    with pytest.raises(
        ConfigError, match="--max-model-len is not given, but the samples in out were made with"
    ):
        started_again(*flags)


def test_traces_join_problem_sample_and_grade(asked, tmp_path):
    output = tmp_path / "new" / "traces.jsonl"
    assert run_command(traces.main, [str(asked), "--output", str(output), "--samples", "1"]) == 0
    rows = list(read_rows(output))
    assert [(row["id"], row["problem"], row["answer"], row["correct"]) for row in rows] == [
        ("p", "1 + 1 Think.", "2", True),  # as it was asked
        ("q", "2 + 2 Think.", "4", True),
    ]


def test_an_output_that_cannot_be_written_is_one_line(evaluated, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert (
        run_command(
            traces.main, [str(evaluated / "base"), "--output", str(tmp_path / "file" / "x.jsonl")]
        )
        == 2
    )
    assert capsys.readouterr().err.startswith("error: --output is ")
    output = tmp_path / "new" / "x.jsonl"
    assert run_command(traces.main, [str(tmp_path), "--output", str(output)]) == 2
    assert not output.parent.exists()
