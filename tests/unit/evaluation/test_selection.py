"""The choice of problems that a model solves sometimes, by the samples of an evaluation."""

import json

import pytest

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation.samples import SampleFiles, settings_path
from openrlhf_swap.evaluation.selection import main
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.data import load_prompts

# By problem: which of its samples are correct.
SOLVED = {"never": [0, 0, 0, 0], "once": [1, 0, 0, 0], "often": [1, 1, 1, 0], "always": [1] * 4}


@pytest.fixture
def folder(tmp_path):
    """An evaluation of four problems with four samples each, and of one without samples."""
    folder = tmp_path / "eval"
    folder.mkdir()
    files = SampleFiles(folder, "own")
    names = [*SOLVED, "unseen"]
    problems = [{"id": name, "problem": f"{name}?", "answer": "7"} for name in names]
    problems[1]["metadata"] = {"unit": "m"}
    write_rows(files.path("problems"), problems)
    samples = []
    for name, correct in SOLVED.items():
        for number, is_correct in enumerate(correct):
            samples.append({"id": name, "sample": number, "correct": bool(is_correct)})
    write_rows(files.path("grades"), samples)
    write_rows(files.path("samples"), [{**row, "text": ""} for row in samples])
    settings_path(folder).write_text(json.dumps({"suffix": " Think."}))
    return folder


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ((), ["once", "often"]),
        (("--solved", "0.25", "1"), ["often"]),
        (("--solved", "0", "0.75"), ["once"]),
        (("--solved", "0.2", "0.8"), ["once", "often"]),
    ],
)
def test_problems_within_the_range_are_kept_as_they_were_asked(folder, tmp_path, flags, kept):
    output = tmp_path / "data" / "train.jsonl"
    assert run_command(main, [str(folder), "--output", str(output), *flags]) == 0
    rows = list(read_rows(output))
    assert [row["id"] for row in rows] == kept
    for row in rows:
        assert row["problem"] == f"{row['id']}? Think."
        assert row["answer"] == "7"
        assert ("unit" in row) == (row["id"] == "once")


def test_a_training_reads_what_was_chosen(folder, tmp_path):
    output = tmp_path / "train.jsonl"
    run_command(main, [str(folder), "--output", str(output)])
    words = f"--data.prompt_dataset {output} --data.input_key problem --data.label_key answer"
    prompts = load_prompts(configure(words.split(), on_cpu=True).args)
    assert len(prompts) == 2


def test_a_choice_of_nothing_is_one_line(folder, tmp_path, capsys):
    output = tmp_path / "train.jsonl"
    flags = ["--solved", "0.3", "0.7"]
    assert run_command(main, [str(folder), "--output", str(output), *flags]) != 0
    said = capsys.readouterr().err
    assert "of 4 problems 2 are solved as seldom as 0.3 and 2 as often as 0.7" in said
    assert not output.exists()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--solved", "0.5", "0.5"], "--solved is 0.5 0.5"),
        (["--solved", "0", "2"], "--solved is 0 2"),
        (["--output", "train.parquet"], "--output is train.parquet"),
    ],
)
def test_flags_that_mean_nothing_are_refused(folder, tmp_path, capsys, flags, said):
    given = ["--output", str(tmp_path / "train.jsonl"), *flags]
    assert run_command(main, [str(folder), *given]) != 0
    assert said in capsys.readouterr().err
