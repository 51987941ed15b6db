"""Decisions before the start, on the real command line: one clear line, status 2, no Ray."""

import json
import shutil
from pathlib import Path

from support.command_lines import GOOD, rows_file, run_main
from support.paths import POLICY

from openrlhf_swap import train
from openrlhf_swap.command import run_command
from openrlhf_swap.files import read_rows
from openrlhf_swap.flags.configuration import configure
from openrlhf_swap.integration.startup.preflight import resolve_run
from openrlhf_swap.packages import versions
from openrlhf_swap.runs import checkpoints


def test_a_model_that_brings_code_is_refused_unless_asked(capsys, tmp_path, prompts_file):
    model = tmp_path / "model"
    shutil.copytree(POLICY, model)
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Model"}
    (model / "config.json").write_text(json.dumps(config))
    changes = {"--data.prompt_dataset": str(prompts_file), "--actor.model_name_or_path": str(model)}
    status, error = run_main(capsys, **changes)
    assert status == 2
    assert "which brings Python code of its own" in error and "--swap.trust_remote_code" in error


def test_no_usable_row_is_an_error(capsys, tmp_path):
    path = rows_file(tmp_path / "rows.jsonl", [{"problem": "What is 100 + 100?", "answer": ""}])
    output = ("--swap.output_dir", str(tmp_path / "out"))
    status, line = run_main(capsys, "--data.prompt_dataset", path, *output)
    assert status == 2
    assert "of which no row can be used: 1 with an empty answer" in line


def test_another_openrlhf_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(versions, "installed_version", lambda _: "0.12.0")
    assert run_command(train.main, ["--swap.verbose"]) == 2
    error = capsys.readouterr().err
    assert "openrlhf 0.12.0 is installed, but this package extends openrlhf 0.11.2" in error


def test_a_checkpoint_is_not_overwritten(capsys, tmp_path, prompts_file):
    path = tmp_path / "checkpoints"
    (path / "_actor" / "global_step2").mkdir(parents=True)
    given = ["--data.prompt_dataset", str(prompts_file), "--ckpt.path", str(path)]
    status, error = run_main(capsys, *given)
    assert status == 2
    assert error.startswith(f"error: --ckpt.path is {path}, which holds checkpoint global_step2")
    assert checkpoints.newest(path) == "global_step2"


def test_a_finished_run_says_so_and_does_nothing(capsys, tmp_path, prompts_file, monkeypatch):
    started = []
    monkeypatch.setattr(train, "_train", lambda *words: started.append(words))
    (tmp_path / "out").mkdir()
    flags = {**GOOD, "--swap.output_dir": tmp_path / "out", "--data.prompt_dataset": prompts_file}
    words = [str(word) for pair in flags.items() for word in pair]

    def start(*more):
        status = run_command(train.main, ["--swap.verbose", *words, *more])
        return status, len(started), "is finished" in capsys.readouterr().out

    longer = ("--train.num_episodes", "2")
    assert start() == (0, 1, False)
    assert start("--ckpt.load_enable") == (0, 1, True)
    assert start("--ckpt.load_enable", *longer) == (0, 2, False)
    assert start("--ckpt.load_enable", *longer) == (0, 2, True)
    assert start("--ckpt.load_enable") == (0, 3, False)  # another command: it ended elsewhere
    assert start() == (0, 4, False)

    other = tmp_path / "other.jsonl"
    shutil.copy(prompts_file, other)
    flags = ("--ckpt.load_enable", "--data.prompt_dataset", str(other))
    status, error = run_main(capsys, "--swap.verbose", *words, *flags)
    assert (status, len(started)) == (2, 4)
    assert error.startswith(f"error: --data.prompt_dataset is {other}, but --swap.output_dir ")
    assert error.endswith(f"finished run with {prompts_file}; give another --swap.output_dir")


def test_a_template_that_closes_the_thought_is_a_warning_with_a_remedy(
    capsys, tmp_path, prompts_file
):
    """The remedy takes the warning away, and OpenRLHF gets rendered prompts."""
    model = tmp_path / "model"
    shutil.copytree(POLICY, model)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    settings["chat_template"] = (
        "{{ messages[0].content }}<think>{{ '\n' if enable_thinking else '\n</think>\n' }}"
    )
    (model / "tokenizer_config.json").write_text(json.dumps(settings))
    (model / "chat_template.jinja").unlink(missing_ok=True)
    flags = {
        **GOOD,
        "--actor.model_name_or_path": model,
        "--data.prompt_dataset": prompts_file,
        "--swap.output_dir": tmp_path / "out",
        "--ckpt.path": tmp_path / "out" / "checkpoints",
    }
    words = [str(word) for pair in flags.items() for word in pair] + ["--data.apply_chat_template"]
    closed = resolve_run(configure(words, on_cpu=True)).args.data
    said = capsys.readouterr().out
    remedy = """--data.chat_template_kwargs '{"enable_thinking": true}'"""
    assert "warning: the chat template closes the thought, but swap scores its steps" in said
    assert remedy in said and closed.apply_chat_template
    words += ["--data.chat_template_kwargs", '{"enable_thinking": true}']
    opened = resolve_run(configure(words, on_cpu=True)).args.data
    assert "closes the thought" not in capsys.readouterr().out
    assert (opened.apply_chat_template, opened.chat_template_kwargs) == (False, None)
    rows = list(read_rows(Path(opened.prompt_dataset)))
    assert rows and all(row["problem"].endswith("<think>\n") for row in rows)
