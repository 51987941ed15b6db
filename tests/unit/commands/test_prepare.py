"""Data preparation: the files that it reads, writes and leaves alone, and what it reports."""

import json

import datasets
import pandas
import pytest
from datasets import Dataset
from support.paths import POLICY
from transformers import AutoTokenizer

from openrlhf_swap import files
from openrlhf_swap.command import run_command
from openrlhf_swap.data.chats import EMPTY_PROBLEM
from openrlhf_swap.data.clean import DUPLICATE
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.data import load_prompts, render_prompts
from openrlhf_swap.prepare import main, removed_path
from openrlhf_swap.rewards.answers import (
    EMPTY_ANSWER,
    LONG_ANSWER,
    PLACEHOLDER_ANSWER,
    PROSE_ANSWER,
    SUFFIX,
)


@pytest.fixture(autouse=True, scope="module")
def own_cache(tmp_path_factory):
    """The cache that `datasets` makes for the small files is removed with them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
        yield


def write_rows(path, rows):
    files.write_rows(path, rows)
    return path


def read_rows(path):
    return list(files.read_rows(path))


def run(source, output, *flags):
    """Prepare a file, without benchmarks unless flags are given; returns the status."""
    given = flags or ("--no-benchmarks",)
    return run_command(main, ["--input", str(source), "--output", str(output), *given])


def training_args(prompts):
    """OpenRLHF's, as far as it reads data with them."""
    keys = "--data.input_key problem --data.label_key answer --data.apply_chat_template"
    words = ["--data.prompt_dataset", str(prompts), *keys.split()]
    return configure(words, on_cpu=True).args


ROWS = [
    {"id": "a", "problem": "What is $1+1$?", "answer": "2", "source": "own"},
    {"id": "b", "problem": "What is $1 + 1$", "answer": "2", "source": "own"},
    {"id": "c", "problem": "Éric counts to\u2028three.", "answer": r"\frac{1}{3}", "source": "own"},
    {"id": "d", "problem": None, "answer": "4", "source": "own"},
    {"id": "e", "problem": "What is $2+2$?", "answer": None, "source": "own"},
    {"id": "f", "problem": "What is $2+3$?", "answer": "5", "source": "own"},
]
KEPT = [
    {"id": "a", "problem": "What is $1+1$?" + SUFFIX, "answer": "2"},
    {"id": "c", "problem": "Éric counts to\u2028three." + SUFFIX, "answer": r"\frac{1}{3}"},
    {"id": "f", "problem": "What is $2+3$?" + SUFFIX, "answer": "5"},
]


def test_all_file_kinds_give_the_same(tmp_path, capsys):
    write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.json").write_text(json.dumps(ROWS, indent=1))
    frame = pandas.DataFrame(ROWS)
    frame.to_parquet(tmp_path / "rows.parquet")
    # As a spreadsheet does.
    frame.to_csv(tmp_path / "rows.csv", index=False, encoding="utf-8-sig")
    expected = [
        (2, "b", DUPLICATE),
        (4, "d", EMPTY_PROBLEM),
        (5, "e", EMPTY_ANSWER),
    ]
    for ending in ("jsonl", "json", "parquet", "csv"):
        source = tmp_path / f"rows.{ending}"
        output = tmp_path / "new" / ending / "prompts.jsonl"
        assert run(source, output) == 0
        assert read_rows(output) == KEPT
        removed = read_rows(removed_path(output))
        assert [(row["row"], row["id"], row["reason"]) for row in removed] == expected
        names = [path.name.removeprefix("prompts.jsonl") for path in output.parent.iterdir()]
        assert sorted(names) == ["", ".removed.jsonl", ".source.json"]
        (record,) = read_rows(output.with_name("prompts.jsonl.source.json"))
        assert record["input"] == str(source)
        assert record["revision"] is None  # a file has no commit
        summary = capsys.readouterr().out
        for line in ("6 rows read", f"1 dropped: {DUPLICATE}", "3 rows written"):
            assert line in summary


def test_what_is_prepared_is_read_by_the_training_and_stays_as_it_is(tmp_path):
    """When it is prepared again, and when another preparation to the same file fails."""
    once = tmp_path / "once.jsonl"
    twice = tmp_path / "twice.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", ROWS), once) == 0
    assert list(load_prompts(training_args(once))) == KEPT
    assert run(once, twice) == 0
    assert once.read_bytes() == twice.read_bytes()
    assert read_rows(removed_path(twice)) == []
    before = removed_path(once).read_bytes()
    bad = write_rows(tmp_path / "bad.jsonl", [{"problem": "", "answer": ""}])
    assert run(bad, once) == 2
    assert once.read_bytes() == twice.read_bytes()
    assert removed_path(once).read_bytes() == before


def test_solutions_give_their_answers(tmp_path, capsys):
    """Raw GSM8K, other columns that hold no usable answers, and what is reported about them."""
    rows = [
        {"problem": "p1", "answer": "48/2 = <<48/2=24>>24\n48+24 = <<48+24=72>>72\n#### 72"},
        {"problem": "p2", "answer": "#### 1,018"},
        {"problem": "p3", "answer": "They sold all of it on Monday and the next day."},
        {"problem": "p4", "answer": "1+" * 200 + "1"},
        {"problem": "p5", "answer": "So it is \\boxed{\\frac{1}{2}}."},
        {"problem": "p6", "answer": "None"},
    ]
    output = tmp_path / "prompts.jsonl"
    assert run(write_rows(tmp_path / "rows.jsonl", rows), output) == 0
    assert [row["answer"] for row in read_rows(output)] == ["72", "1018", r"\frac{1}{2}"]
    dropped = [row["reason"] for row in read_rows(removed_path(output))]
    assert dropped == [PROSE_ANSWER, LONG_ANSWER, PLACEHOLDER_ANSWER]
    shown = capsys.readouterr().out
    assert f"1 dropped: {LONG_ANSWER}" in shown
    assert "  '72' (from '" in shown
    assert r"  '\frac{1}{2}' (from 'So it is \boxed{\frac{1}{2}}.')" in shown


def test_chats_and_keys_inside_of_columns(tmp_path):
    """A file as verl has it, read back as the training reads it."""

    def row(number, *messages):
        chat = [{"role": role, "content": content} for role, content in messages]
        return {"prompt": chat, "reward_model": {"style": "rule", "ground_truth": str(number)}}

    keys = [
        "--problem-key",
        "prompt",
        "--answer-key",
        "reward_model.ground_truth",
        "--no-benchmarks",
    ]
    output = tmp_path / "prompts.jsonl"
    mixed = [
        row(1, ("system", "Be brief."), ("user", "What is 0+1?")),
        row(2, ("user", "What is 1+1?")),
        row(3, ("user", "What is 1+2?"), ("assistant", "3")),
        row(4, ("user", "Think of 2."), ("assistant", "Done."), ("user", "Double it.")),
    ]
    Dataset.from_list(mixed).to_parquet(tmp_path / "mixed.parquet")
    Dataset.from_list(mixed).save_to_disk(tmp_path / "saved")
    assert run(tmp_path / "saved", output, *keys) == 0
    kept = read_rows(output)
    assert run(tmp_path / "mixed.parquet", output, *keys) == 0
    assert read_rows(output) == kept
    assert [row["answer"] for row in kept] == ["1", "2", "4"]
    assert [len(row["problem"]) for row in kept] == [2, 1, 3]
    assert kept[0]["problem"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 0+1?" + SUFFIX},
    ]
    (removed,) = read_rows(removed_path(output))
    assert removed["row"] == 3
    assert removed["reason"] == "a chat that ends with the assistant's turn"
    again = tmp_path / "again.jsonl"
    assert run(output, again) == 0
    assert read_rows(again) == kept

    args = training_args(output)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    _, second, third = render_prompts(load_prompts(args), args, tokenizer)
    assert "What is 1+1?" + SUFFIX in second
    assert "Think of 2." in third
    assert "Double it." + SUFFIX in third


def test_bad_input_is_one_line(tmp_path, capsys):
    good = write_rows(tmp_path / "rows.jsonl", ROWS)
    (tmp_path / "rows.tsv").write_text("problem\tanswer\np\t1\n")
    (tmp_path / "torn.csv").write_text("problem,answer\np,1\nq,2,3\n")
    nested = [{"problem": "p", "reward_model": {"ground_truth": "1"}}]
    inner = write_rows(tmp_path / "inner.jsonl", nested)
    faulty = [{"problem": "", "answer": "1"}, {"problem": "p", "answer": ""}]
    useless = write_rows(tmp_path / "useless.jsonl", faulty)
    output = tmp_path / "prompts.jsonl"
    key = ("--no-benchmarks", "--answer-key")
    cases = [
        ((tmp_path / "no.parquet", output), "cannot be loaded (Unable to find '"),
        ((tmp_path / "rows.tsv", output), "or give a file that ends in .jsonl, .json, .csv, .parq"),
        ((tmp_path / "torn.csv", output), "row 2: more or fewer fields than the header"),
        ((inner, output, *key, "reward_model.gold"), "are: problem, reward_model.ground_truth"),
        ((useless, output), f"no row can be used: 1 with {EMPTY_PROBLEM}, 1 with {EMPTY_ANSWER}"),
        ((good, good), "which is the input"),
        ((good, good / "prompts.jsonl"), "cannot be written to"),
        ((good, output, "--benchmarks", str(tmp_path)), "math500.jsonl cannot be read"),
        ((good, output, "--suffix", ""), "HuggingFaceH4/MATH-500 cannot be loaded"),
    ]
    for arguments, message in cases:
        assert run(*arguments) == 2, message
        errors = capsys.readouterr().err.splitlines()
        (line,) = [line for line in errors if line.startswith("error: ")]
        assert message in line
        assert not output.exists()
        assert not removed_path(output).exists()
