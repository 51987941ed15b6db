"""Which rows of a data set are trained on: those that cannot be are counted, reported and left out."""

import copy
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from openrlhf.datasets import PromptDataset
from support.command_lines import GOOD, rows_file
from support.paths import POLICY

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup import prompts as startup_prompts
from openrlhf_swap.integration.startup.prompts import load_prompts, write_usable_prompts
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.rewards.verifiers import Reference
from openrlhf_swap.rollouts.families import closes_thought, prompt_text, set_template_arguments


def data_arguments(path, **changes):
    argv = [word for flag, value in GOOD.items() for word in (flag, value)]
    args = configure(
        [*argv, "--data.prompt_dataset", path, "--data.apply_chat_template"], on_cpu=True
    ).args
    vars(args.data).update(changes)
    return args


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def write(args, tokenizer, output, config=None, evaluates=False, **run):
    """The usable rows of a run with these arguments and settings."""
    configuration = SimpleNamespace(args=args, run=RunConfig(output_dir=str(output), **run))
    return write_usable_prompts(configuration, build(config or SwapConfig()), tokenizer, evaluates)


def usable(path, tokenizer, output):
    return write(data_arguments(path), tokenizer, output)


def test_bad_rows_are_counted_reported_and_dropped(capsys, tmp_path, tokenizer):
    rows = [
        {"problem": "What is 100 + 100?", "answer": "200"},
        {"problem": "What is 1?" * 200, "answer": "1"},
        {"problem": "What is 100 + 101?", "answer": " "},
        {"problem": "", "answer": "3"},
        {"problem": "What is 100 + 102?", "answer": "$202$"},
    ]
    kept = usable(rows_file(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path / "out")
    assert read(kept) == [rows[0], rows[4]]
    report = capsys.readouterr().out
    assert "2 of 5 rows usable" in report
    for reason in (
        "1 with a prompt of more than 80 tokens",
        "1 with an empty answer",
        "1 with an empty problem",
    ):
        assert reason in report


def test_rows_that_cannot_be_read_are_counted_and_left_out(capsys, tmp_path, tokenizer):
    row = json.dumps({"problem": "What is 100 + 100?", "answer": "200"}).encode()
    bad = [
        b'{"problem": "caf\xe9"}',
        b"\0" * 64,
        b'{"problem": "\\ud800", "answer": "1"}',
        b'{"problem"',
    ]
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\n".join([row, *bad, row]) + b"\n")
    kept = usable(str(path), tokenizer, tmp_path / "out")
    assert read(kept) == [json.loads(row)] * 2
    report = capsys.readouterr().out
    assert (
        f"[swap] {path}: 4 of 6 rows cannot be read: row 2: not UTF-8 (byte 0xe9 at position 17"
        in report
    )
    assert (
        "row 3: zero bytes, as a crash leaves them" in report and "and 1 more; left out" in report
    )
    assert "2 of 2 rows usable" in report
    path.write_bytes(b"\n".join(bad))
    with pytest.raises(DataError, match="which cannot be read: row 1: not UTF-8"):
        usable(str(path), tokenizer, tmp_path / "out")


def test_problems_that_are_neither_text_nor_a_chat_are_dropped(capsys, tmp_path, tokenizer):
    chats = [[{"role": "user", "content": "What is 1?"}], [], [{"role": "user", "content": None}]]
    chats += [[{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]]
    chats += [[{"role": "user", "text": "x"}]]
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": chat, "answer": "1"} for chat in chats])
    kept = usable(path, tokenizer, tmp_path / "out")
    assert [row["problem"] for row in read(kept)] == [chats[0]]
    report = capsys.readouterr().out
    assert "1 with an empty problem, or one that is neither text nor a chat" in report
    assert "1 with a chat that ends with the assistant's turn" in report
    for keys in ("role, content", "role, text"):
        assert (
            f"1 with a chat whose messages are no texts with role and content (they have {keys})"
            in report
        )


LAYOUTS = {
    "content parts": [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "1?"}],
        }
    ],
    "ShareGPT": [{"from": "human", "value": "What is\n1?"}, {"from": "gpt", "value": "It is 1."}],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_other_layouts_of_chats_are_read(tmp_path, tokenizer, layout):
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": LAYOUTS[layout], "answer": "1"}] * 2)
    kept = usable(path, tokenizer, tmp_path / "out")
    assert [row["problem"] for row in read(kept)] == [
        [{"role": "user", "content": "What is\n1?"}]
    ] * 2


def test_a_chat_without_a_template_says_so(tmp_path, tokenizer):
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": LAYOUTS["ShareGPT"], "answer": "1"}] * 2)
    args = data_arguments(path, apply_chat_template=False)
    with pytest.raises(
        DataError, match=r"2 with a chat as its prompt, which needs --data\.apply_chat_template"
    ):
        write(args, tokenizer, tmp_path / "out")


def test_integers_of_any_size_become_their_text(tmp_path, tokenizer):
    numbers = [200, 10**22, 10**22 + 1]
    rows = [{"problem": f"What is 100 + {n}?", "answer": n} for n in numbers]
    kept = usable(rows_file(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path / "out")
    assert [row["answer"] for row in read(kept)] == [str(n) for n in numbers]


@pytest.mark.parametrize("grader", ["regex:x", "support.verifiers:nearness", "math"])
def test_answers_are_cleaned_whatever_the_grader(tmp_path, tokenizer, grader):
    rows = [
        {"problem": "What is 100 + 100?", "answer": answer}
        for answer in (200.0, '["0200"]', "so\n#### 200")
    ]
    path = rows_file(tmp_path / "rows.jsonl", rows)
    kept = write(data_arguments(path), tokenizer, tmp_path / "out", grader=grader)
    assert [Reference.parse(row["answer"]).answer for row in read(kept)] == ["200"] * 3


def test_placeholders_are_dropped_or_kept_and_odd_answers_of_another_grader_are_named(
    tmp_path, tokenizer, capsys
):
    rows = [
        {"problem": f"What is {n}?", "answer": answer}
        for n, answer in enumerate(("1", "None", "It is 2"))
    ]
    args = data_arguments(rows_file(tmp_path / "rows.jsonl", rows), batch_size=1)

    def answers(grader, keeps):
        kept = write(args, tokenizer, tmp_path / "out", grader=grader, keep_placeholders=keeps)
        return [Reference.parse(row["answer"]).answer for row in read(kept)]

    assert (answers("math", False), answers("math", True)) == (["1"], ["1", "None"])
    assert "warning" not in capsys.readouterr().out
    assert answers("support.verifiers:nearness", False) == ["1", "None", "It is 2"]
    warning = "1 with a placeholder as its answer, such as 'proof' or 'N/A', 1 with a sentence as its answer; steps "
    assert (
        f"[swap] warning: rows kept for support.verifiers:nearness: {warning}"
        in capsys.readouterr().out
    )


def test_a_second_start_checks_nothing_again(tmp_path, tokenizer, monkeypatch):
    rows = [
        {"problem": f"What is 100 + {n}?", "answer": answer}
        for n, answer in enumerate(("1", " ", "3"))
    ]
    path = rows_file(tmp_path / "rows.jsonl", rows)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = read(usable(path, tokenizer, tmp_path / "out"))
    monkeypatch.setattr(startup_prompts, "reasons_to_drop", None)
    assert read(usable(path, tokenizer, tmp_path / "again")) == first
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows[1]["answer"] = "2"  # another row is checked
    assert (
        len(read(usable(rows_file(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path / "new")))
        == 3
    )


def test_rows_of_an_evaluation_are_counted_and_left_out_too(capsys, tmp_path, tokenizer):
    rows = [
        {"problem": f"What is 100 + {n}?", "answer": answer}
        for n, answer in enumerate(("", None, "#### 102"))
    ]
    path = rows_file(tmp_path / "rows.jsonl", [*rows, {"problem": "", "answer": "3"}])
    args = data_arguments("unused")
    args.eval.dataset = path
    kept = write(args, tokenizer, tmp_path / "out", evaluates=True)
    assert kept == str(tmp_path / "out" / "eval_prompts.jsonl")
    assert read(kept) == [{**rows[2], "answer": "102"}]
    report = capsys.readouterr().out
    assert "[swap] evaluation data: 1 of 4 rows usable; dropped 2 with an empty answer" in report


def test_what_a_loader_failed_at_is_named(tmp_path, tokenizer):
    """Its own message is that an error occurred."""
    path = tmp_path / "rows.parquet"
    path.write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(DataError) as error:
        usable(str(path), tokenizer, tmp_path / "out")
    assert str(error.value).startswith(f"--data.prompt_dataset is {path}, which cannot be read: ")
    assert "An error occurred while generating" not in str(error.value)


CSV = """problem,answer,field
What is 1?,1,12345678901234567
What is 2?,2,007
What is 3?,3,0.50
What is 4?,4,True
What is 5?,5,NA
What is 6?,6,
What is 7?,7,2020-01-06
"""


@pytest.fixture
def all_kept(monkeypatch):
    """Every row is usable: nothing is graded, so no process starts."""
    monkeypatch.setattr(
        startup_prompts, "reasons_to_drop", lambda rendered, *_: [None] * len(rendered)
    )


@pytest.mark.parametrize("name", ["rows.csv", "rows[1].CSV"])
def test_the_fields_of_a_csv_file_are_the_texts_that_they_are(all_kept, tmp_path, tokenizer, name):
    """The loader of `datasets` makes 1.2345678901234568e+16, 7 and 0.5 of them, and drops NA."""
    path = tmp_path / name
    path.write_text(CSV)
    header, *lines = (line.split(",") for line in CSV.splitlines())
    expected = [dict(zip(header[:2], line[:2], strict=True)) for line in lines]
    args = data_arguments(str(path))
    args.eval.dataset = str(path)
    evaluated = write(args, tokenizer, tmp_path / "out", evaluates=True)
    assert read(evaluated) == expected
    assert read(write(args, tokenizer, tmp_path / "out")) == expected


def test_the_number_of_training_prompts_does_not_cut_the_evaluation(tmp_path, tokenizer):
    rows = [{"problem": f"What is {n} + {n}?", "answer": str(2 * n)} for n in (100, 101, 102)]
    path = rows_file(tmp_path / "rows.jsonl", rows)
    args = data_arguments(path, max_samples=2)
    args.eval.dataset = path
    assert (len(load_prompts(args)), len(load_prompts(args, for_training=False))) == (2, 3)
    used = write(args, tokenizer, tmp_path / "out")
    assert read(used) == rows[:2]  # OpenRLHF is not to cut it, because it would cut the other one


@pytest.mark.parametrize("probabilities", [None, "0.2,0.8"])
def test_several_data_sets_are_mixed_as_openrlhf_mixes_them(tmp_path, probabilities):
    from openrlhf.datasets.utils import blending_datasets

    names = []
    for kind, number in (("sums", 7), ("products", 4)):
        rows = [{"problem": f"{kind} {n}", "answer": str(n)} for n in range(number)]
        names.append(rows_file(tmp_path / f"{kind}.jsonl", rows))
    args = data_arguments(", ".join(names), prompt_probs=probabilities, max_samples=6)
    quiet = SimpleNamespace(print=lambda *_: None, is_rank_0=lambda: False, args=args)
    theirs = blending_datasets(",".join(names), probabilities, quiet, args.train.seed, max_count=6)
    assert load_prompts(args) == list(theirs)[:6]
    # The same mixture where a file has a row that OpenRLHF cannot read.
    with open(names[1], "ab") as file:
        file.write(b"{\n")
    assert load_prompts(args) == list(theirs)[:6]


def test_an_output_folder_that_openrlhf_could_not_read_from_is_refused(
    all_kept, tmp_path, tokenizer
):
    path = rows_file(tmp_path / "a.jsonl", [{"problem": "What is 100 + 100?", "answer": "200"}])
    for folder, character in (("lr=1e-6,theta=0.3", ","), ("swap@1", "@"), ("a[1]", "[")):
        output = tmp_path / folder
        with pytest.raises(ConfigError) as error:
            usable(path, tokenizer, output)
        assert str(error.value) == (
            f"--swap.output_dir is {output}, but OpenRLHF is to read prompts.jsonl there and takes a {character!r} "
            "in the name of a data set for something else: use a folder without one in its path"
        )
        assert not output.exists()


def test_a_model_without_a_chat_template_is_named_before_the_data_are_read(tmp_path):
    with pytest.raises(ConfigError) as error:
        usable("no.jsonl", SimpleNamespace(chat_template=None), tmp_path)
    assert str(error.value) == (
        f"--data.apply_chat_template is on, but {POLICY} has no chat template; leave the flag out (where a recipe or "
        "a file sets it: --no-data.apply_chat_template) and give --data.input_template, or give a model with a "
        "template"
    )


def test_raw_solutions_are_trained_on_by_their_answers(capsys, tmp_path, tokenizer):
    rows = [
        {"problem": "What is 100 + 100?", "answer": "100 + 100 = 200\n#### 200"},
        {"problem": "What is 100 + 101?", "answer": 201.0},
        {"problem": "What is 100 + 102?", "answer": "He sold 202 of them."},
        {"problem": "What is 100 + 103?", "answer": "203"},
    ]
    kept = usable(rows_file(tmp_path / "rows.jsonl", rows), tokenizer, tmp_path / "out")
    assert [row["answer"] for row in read(kept)] == ["200", "201", "203"]
    report = capsys.readouterr().out
    assert "3 of 4 rows usable; dropped 1 with a sentence as its answer" in report
    for shown in ("'200' (from '100 + 100 = ", "'201' (from '201.0')", "scored: '203'\n"):
        assert shown in report


def test_a_prompt_that_the_tokenizer_changes_is_dropped(capsys, tmp_path):
    """Its responses could not be told from it in the decoded text, and would all be graded wrong."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    characters = {character: number for number, character in enumerate("Andreé 1+=?\n\u0301")}
    inner = Tokenizer(models.WordLevel(characters))
    inner.normalizer = normalizers.NFC()
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner)
    tokenizer.decode = lambda ids, **_: "".join(list(characters)[i] for i in ids)
    prompts = ["Andr\u00e9 1+1=?", "Andre\u0301 1+1=?"]
    reasons = startup_prompts.reasons_to_drop(
        prompts, [None] * 2, [Reference("2")] * 2, 100, tokenizer, RunConfig()
    )
    assert reasons == [None, startup_prompts.CHANGED_PROMPT]


@pytest.mark.parametrize(("name", "written"), [("l1_exact", True), ("thinkprune", False)])
def test_an_evaluation_asks_for_a_budget_where_the_training_does(
    tmp_path, tokenizer, name, written
):
    args = data_arguments("unused", max_len=1000)
    args.eval.dataset = rows_file(
        tmp_path / "rows.jsonl", [{"problem": "What is 100 + 100?", "answer": "200"}]
    )
    kept = write(args, tokenizer, tmp_path / "out", SwapConfig(objective=name), evaluates=True)
    assert ("Think for" in Path(kept).read_text()) == written


def test_a_method_changes_the_last_message_of_a_chat(tmp_path, tokenizer):
    chat = [
        {"role": "system", "content": "Add."},
        {"role": "user", "content": "What is 100 + 100?"},
    ]
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": chat, "answer": "200"}])
    config = SwapConfig(objective="l1_exact", options={"shortest": "7", "longest": "7"})
    kept = write(data_arguments(path, max_len=1000), tokenizer, tmp_path / "out", config)
    system, user = json.loads(Path(kept).read_text())["problem"]
    assert system == chat[0]
    assert user["content"].startswith("What is 100 + 100? Let's") and user["content"].endswith(
        " Think for 7 tokens."
    )


def test_the_row_of_another_grader_travels_in_its_label(capsys, tmp_path, tokenizer):
    rows = [
        {"problem": "What is 1 + 1?", "answer": 2, "tolerance": 1},
        {"problem": "What?", "answer": " "},
    ]
    path = rows_file(tmp_path / "rows.jsonl", rows)
    args = data_arguments(path)
    args.eval.dataset = path
    for evaluates, file in ((False, "prompts.jsonl"), (True, "eval_prompts.jsonl")):
        kept = write(
            args,
            tokenizer,
            tmp_path / "out",
            grader="support.verifiers:nearness",
            evaluates=evaluates,
        )
        assert kept == str(tmp_path / "out" / file)
        (row,) = read(kept)
        assert Reference.parse(row["answer"]) == Reference("2", "What is 1 + 1?", {"tolerance": 1})
        said = (
            "evaluation data: " * evaluates + "1 of 2 rows usable; dropped 1 with an empty answer"
        )
        assert said in capsys.readouterr().out
    with pytest.raises(
        ConfigError, match=r"crashes, which fails on an empty response to row 1: KeyError"
    ):
        write(args, tokenizer, tmp_path / "out", grader="support.verifiers:crashes")


def test_a_label_that_cannot_be_read_is_refused_by_its_row(tmp_path, tokenizer):
    label = Reference("2", "What is 1 + 1?", {"tolerance": 1}).label()
    rows = [{"problem": "What is 1 + 1?", "answer": text} for text in (label, label[:-3])]
    args = data_arguments(rows_file(tmp_path / "rows.jsonl", rows))
    for grader in ("math", "support.verifiers:nearness"):
        with pytest.raises(
            DataError, match=r"rows\.jsonl, row 2: the answer begins as a label and cannot be read"
        ):
            write(args, tokenizer, tmp_path / "out", grader=grader)


def test_the_prompts_of_a_run_are_a_data_set_again(tmp_path, tokenizer):
    rows = [{"problem": "What is 1 + 1?", "answer": 2, "tolerance": 1}]
    args = data_arguments(rows_file(tmp_path / "rows.jsonl", rows))
    first = write(args, tokenizer, tmp_path / "first", grader="support.verifiers:nearness")
    args.data.prompt_dataset = first
    again = write(args, tokenizer, tmp_path / "again", grader="support.verifiers:nearness")
    assert Path(again).read_text() == Path(first).read_text()
    kept = write(args, tokenizer, tmp_path / "math", grader="math")
    assert json.loads(Path(kept).read_text())["answer"] == "2"


def thinking(tokenizer):
    """A tokenizer whose template closes the thought unless its argument forbids that."""
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think>"
        "{{ '\n' if enable_thinking else '\n\n</think>\n\n' }}"
    )
    return tokenizer


@pytest.mark.parametrize(
    ("arguments", "ending"),
    [(None, "<think>\n\n</think>\n\n"), ('{"enable_thinking": true}', "<think>\n")],
)
def test_openrlhf_renders_with_the_arguments_of_the_chat_template(
    tmp_path, tokenizer, arguments, ending
):
    """Its own data set reads the prompts that are written, and a template without arguments as it
    is.
    """
    rows = [
        {"problem": "What is 100 + 100?", "answer": "200"},
        {"problem": "What is 1 + 1?", "answer": "2"},
    ]
    source = rows_file(tmp_path / "rows.jsonl", rows)
    args, told, plain = data_arguments(source), thinking(tokenizer), thinking(tokenizer)
    args.data.chat_template_kwargs = arguments
    set_template_arguments(told, arguments)
    file = write(args, told, tmp_path / "out")
    args.data.apply_chat_template = arguments is None
    strategy = SimpleNamespace(args=args, is_rank_0=lambda: False)
    expected = [f"<|user|>{row['problem']}<|assistant|>{ending}" for row in rows]
    assert PromptDataset(read(file), plain, strategy, args.data.input_template).prompts == expected
    assert [prompt_text(told, row["problem"]) for row in rows] == expected
    assert closes_thought(plain, "</think>") and closes_thought(told, "</think>") == (
        arguments is None
    )
