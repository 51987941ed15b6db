"""Which rows of a data set are trained on: others are counted, reported and left out."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from openrlhf.datasets import PromptDataset
from support.command_lines import GOOD, rows_file
from support.paths import POLICY

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.data.files import check_quickly
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.flags.rules import check_flags, columns_of
from openrlhf_swap.integration.startup.data import load_prompts, write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.graded_text import closes_thought
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rollouts.families import prompt_text, set_template_arguments

OWN = "support.verifiers:nearness"


def data_arguments(path, **changes):
    argv = ["--data.apply_chat_template"]
    for flag, value in {**GOOD, "--data.prompt_dataset": path}.items():
        argv += [flag, value]
    args = configure(argv, on_cpu=True).args
    vars(args.data).update(changes)
    return args


def read(path):
    lines = Path(path).read_text().splitlines()
    return [json.loads(line) for line in lines]


def write(args, tokenizer, output, config=None, evaluates=False, **run):
    """The usable rows of a run with these arguments and settings."""
    configuration = SimpleNamespace(args=args, run=RunConfig(output_dir=str(output), **run))
    return write_usable_prompts(configuration, build(config or SwapConfig()), tokenizer, evaluates)


@pytest.fixture
def usable(tmp_path, tokenizer):
    """The rows that are written of those given, or of a file, with other settings of the run."""

    def usable(rows, **run):
        path = rows if isinstance(rows, str) else rows_file(tmp_path / "rows.jsonl", rows)
        return read(write(data_arguments(path), tokenizer, tmp_path / "out", **run))

    return usable


def test_prompts_without_answers_are_enough_where_nothing_is_graded(tmp_path, tokenizer):
    """The instruction for the teacher stands before the problem; a file may name a column."""
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": "What is 2 + 100?"}])
    flags = "--swap.objective crisp --swap.grader none --data.apply_chat_template"
    flags += " --data.label_key answer"
    flags += f" --actor.model_name_or_path {POLICY} --data.prompt_dataset {path}"
    flags += f" --data.input_key problem --swap.output_dir {tmp_path}/out --rollout.batch_size 1"
    flags += " --rollout.n_samples_per_prompt 2 --train.batch_size 2 --train.micro_batch_size 2"
    run = configure(flags.split(), on_cpu=True)
    check_flags(run)
    check_quickly("--data.prompt_dataset", path, columns_of(run.args))
    (row,) = read(write_usable_prompts(run, build(run.method), tokenizer))
    label = row.pop(run.args.data.label_key)
    assert Reference.parse(label).answer == ""
    assert row == {"problem": f"{build(run.method).instruction}\n\nWhat is 2 + 100?"}


def asked(*answers):
    return [{"problem": f"What is {n} + 100?", "answer": a} for n, a in enumerate(answers)]


def chats(*problems):
    return [{"problem": problem, "answer": "1"} for problem in problems]


def user(content):
    return {"role": "user", "content": content}


@pytest.mark.parametrize(
    ("rows", "kept", "reason"),
    [
        ([{"problem": "What is 1?" * 200, "answer": "1"}], [], "a prompt of more than 80 tokens"),
        (asked(" "), [], "an empty answer"),
        (asked("$202$"), asked("$202$"), None),
        (asked("He sold 202 of them."), [], "a sentence as its answer"),
        (chats([user("What is 1?")]), chats([user("What is 1?")]), None),
        (chats([]), [], "an empty problem, or one that is neither text nor a chat"),
        (
            chats([user("x"), {"role": "assistant", "content": "y"}]),
            [],
            "a chat that ends with the assistant's turn",
        ),
        (chats([user(None)]), [], "a chat whose messages are no texts with role and content"),
        (
            chats([user([{"type": "text", "text": "What"}, {"type": "text", "text": "is 1?"}])]),
            chats([user("What\nis 1?")]),
            None,
        ),
    ],
)
def test_a_row_is_kept_or_dropped_with_a_reason(capsys, usable, rows, kept, reason):
    good = {"problem": "What is 100 + 100?", "answer": "200"}
    assert usable([good, *rows]) == [good, *kept]
    counts = f"data: {1 + len(kept)} of 2 rows usable"
    dropped = f"; dropped 1 with {reason}" if reason else ""
    assert f"[swap] {counts}{dropped}" in capsys.readouterr().out


def test_a_chat_without_a_template_says_so(tmp_path, tokenizer):
    path = rows_file(tmp_path / "rows.jsonl", chats([user("What is 1?")]))
    args = data_arguments(path, apply_chat_template=False)
    refused = r"1 with a chat as its prompt, which needs --data\.apply_chat_template"
    with pytest.raises(DataError, match=refused):
        write(args, tokenizer, tmp_path / "out")
    closed = SimpleNamespace(chat_template=None)
    with pytest.raises(ConfigError, match=f"is on, but {POLICY} has no chat template; leave the "):
        write(data_arguments("no.jsonl"), closed, tmp_path)


def test_an_evaluation_has_all_of_its_rows(capsys, tmp_path, tokenizer):
    rows = asked("", None, "#### 102", "103", "104")
    path = rows_file(tmp_path / "rows.jsonl", [*rows, {"problem": "", "answer": "3"}])
    args = data_arguments(path, max_samples=4)
    args.eval.dataset = path
    assert len(load_prompts(args)) == 4
    assert len(load_prompts(args, for_training=False)) == 6
    evaluated = write(args, tokenizer, tmp_path / "out", evaluates=True)
    assert evaluated == str(tmp_path / "out" / "eval_prompts.jsonl")
    assert read(evaluated) == [{**rows[2], "answer": "102"}, *rows[3:]]
    report = capsys.readouterr().out
    assert "[swap] evaluation data: 3 of 6 rows usable; dropped 2 with an empty answer" in report
    # OpenRLHF is not to cut the rows to train on, because it would cut the others, too.
    assert len(read(write(args, tokenizer, tmp_path / "out"))) == 2


def test_several_data_sets_are_read_as_openrlhf_reads_them(tmp_path):
    from openrlhf.datasets.utils import blending_datasets

    names = []
    for kind, number in (("sums", 7), ("products", 4)):
        rows = [{"problem": f"{kind} {n}", "answer": str(n)} for n in range(number)]
        names.append(rows_file(tmp_path / f"{kind}.jsonl", rows))
    args = data_arguments(", ".join(names), max_samples=9)
    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    theirs = list(blending_datasets(",".join(names), None, quiet))[:9]
    assert load_prompts(args) == theirs
    # The same rows where a file has one that OpenRLHF cannot read.
    with open(names[1], "ab") as file:
        file.write(b"{\n")
    assert load_prompts(args) == theirs


TOLERANT = {"problem": "What is 1 + 1?", "answer": 2, "tolerance": 1}
LABELLED = Reference("2", "What is 1 + 1?", {"tolerance": 1})


def test_the_row_of_another_grader_travels_in_its_label_and_is_a_row_again(tmp_path, tokenizer):
    args = data_arguments(rows_file(tmp_path / "rows.jsonl", [TOLERANT]))
    args.eval.dataset = args.data.prompt_dataset
    for evaluates in (True, False):
        kept = write(args, tokenizer, tmp_path / "out", grader=OWN, evaluates=evaluates)
        assert [Reference.parse(row["answer"]) for row in read(kept)] == [LABELLED]
    args.data.prompt_dataset = kept
    again = write(args, tokenizer, tmp_path / "again", grader=OWN)
    assert read(again) == read(kept)
    (graded_as_maths,) = read(write(args, tokenizer, tmp_path / "math"))
    assert graded_as_maths["answer"] == "2"
    with pytest.raises(ConfigError, match=r"crashes, which fails on an empty response to row 1: K"):
        write(args, tokenizer, tmp_path / "out", grader="support.verifiers:crashes")


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [(None, "<think>\n\n</think>\n\n"), ('{"enable_thinking": true}', "<think>\n")],
)
def test_openrlhf_renders_with_the_arguments_of_the_chat_template(
    tmp_path, tokenizer, arguments, ending
):
    """Its data set reads the prompts that are written, or a template without arguments as it is."""
    plain = copy.deepcopy(tokenizer)
    plain.chat_template = (
        "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think>"
        "{{ '\n' if enable_thinking else '\n\n</think>\n\n' }}"
    )
    told = copy.deepcopy(plain)
    rows = asked("200", "2")
    args = data_arguments(rows_file(tmp_path / "rows.jsonl", rows))
    args.data.chat_template_kwargs = arguments
    set_template_arguments(told, arguments)
    file = write(args, told, tmp_path / "out")
    args.data.apply_chat_template = arguments is None
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    expected = [f"<|user|>{row['problem']}<|assistant|>{ending}" for row in rows]
    data = PromptDataset(read(file), plain, strategy, args.data.input_template)
    assert data.prompts == expected
    assert [prompt_text(told, row["problem"]) for row in rows] == expected
    assert closes_thought(prompt_text(plain, "?"), "</think>")
    assert closes_thought(prompt_text(told, "?"), "</think>") == (arguments is None)
