"""Wrong command lines as a user types them: one line, status 2, mostly at once."""

import os
import resource
import subprocess
import sys

import pytest
from support.paths import POLICY, ROOT

from openrlhf_swap import train
from openrlhf_swap.command import run_command

# Of CPU time: under one if no hub is contacted, more on a busy machine and in an environment that
# is yet to be compiled; the imports of a training take ten.
SECONDS = 3.0
MODEL = str(POLICY)
DATA = "--data.prompt_dataset ROWS --data.input_key problem --data.label_key answer"
GOOD = f"train --actor.model_name_or_path {MODEL} {DATA}"
SCORE, EVALUATION = f"score --model {MODEL} --output new", f"evaluation --model {MODEL} --output"
UNREADABLE = "which cannot be read"
LINES = [
    (
        "train --swap.lenght_coef 1",
        "unrecognized arguments: --swap.lenght_coef 1; did you mean --swap.length_coef?",
    ),
    ("train", "--actor.model_name_or_path is missing; give a Hugging Face model or a folder"),
    (
        GOOD.removesuffix(" --data.label_key answer"),
        "--data.label_key is missing; name the column with the reference",
    ),
    (
        GOOD + " --data.max_len 300 --rollout.max_new_tokens 320",
        "--data.max_len is 300, in which --rollout.max_new_t",
    ),
    ("train --rollout.batch_size many", "--rollout.batch_size: invalid int value: 'many'"),
    ("train --algo.advantage.estimator swap", "--algo.advantage.estimator: invalid choice: 'swap'"),
    (GOOD.replace(MODEL, "/no/such"), f"--actor.model_name_or_path is /no/such, {UNREADABLE}"),
    (
        GOOD.replace(MODEL, "no/such"),
        f"--actor.model_name_or_path is no/such, {UNREADABLE} (Cannot find",
    ),
    (
        GOOD.replace(MODEL, "no:such"),
        f"--actor.model_name_or_path is no:such, {UNREADABLE} (Repo id must",
    ),
    (
        "train --swap.objective nowhere:Mine",
        "--swap.objective is 'nowhere:Mine', which cannot be imported (No module",
    ),
    (
        GOOD.replace("ROWS", "no.jsonl"),
        f"--data.prompt_dataset is no.jsonl, {UNREADABLE}: [Errno 2] No",
    ),
    (
        GOOD.replace("ROWS", "BROKEN.jsonl"),
        f"--data.prompt_dataset is BROKEN.jsonl, {UNREADABLE}: row 1:",
    ),
    (
        GOOD.replace("ROWS", "FOLDER.jsonl"),
        f"--data.prompt_dataset is FOLDER.jsonl, {UNREADABLE}: [Errno 21] Is",
    ),
    (
        GOOD + " --eval.steps 5 --eval.dataset BROKEN.jsonl",
        f"--eval.dataset is BROKEN.jsonl, {UNREADABLE}: row",
    ),
    (
        GOOD.replace("ROWS", "EMPTY.jsonl,ROWS.jsonl"),
        f"--data.prompt_dataset is EMPTY.jsonl, {UNREADABLE}: it has no",
    ),
    (
        GOOD.replace("ROWS", "ROWS.jsonl").replace("label_key answer", "label_key gold"),
        "--data.label_key is gold, but ROWS.jsonl has no such column; its columns are: problem, answer",
    ),
    (
        GOOD + " --swap.output_dir ROWS/out",
        "--swap.output_dir is ROWS/out, which cannot be written to (Not a directory)",
    ),
    (
        GOOD + " --ckpt.path ROWS",
        "--ckpt.path is ROWS, which cannot be written to (Not a directory)",
    ),
    (
        GOOD + " --ckpt.output_dir ROWS",
        "--ckpt.output_dir is ROWS, which cannot be written to (Not a directory); use",
    ),
    ("plan --gpu abacus", "--gpu: abacus is unknown; use one of a100-40"),
    (
        "prepare --input BROKEN.jsonl --output new.jsonl",
        f"--input is BROKEN.jsonl, {UNREADABLE}: row 1: not",
    ),
    (
        "prepare --input FOLDER.jsonl --output new.jsonl",
        f"--input is FOLDER.jsonl, {UNREADABLE}: [Errno 21] Is",
    ),
    ("prepare --input ROWS", "the following arguments are required: --output"),
    (SCORE + " --input EMPTY.jsonl", f"--input is EMPTY.jsonl, {UNREADABLE}: it has no rows"),
    (SCORE + " --input FOLDER.jsonl", f"--input is FOLDER.jsonl, {UNREADABLE}: [Errno 21] Is"),
    (
        SCORE + " --input ROWS.jsonl",
        "--input is ROWS.jsonl, of which no row can be scored: row 1: no response",
    ),
    (
        SCORE.replace(MODEL, "no/such") + " --input ROWS",
        f"--model is no/such, {UNREADABLE} (Cannot find",
    ),
    (
        "reference --model /no/such --dataset ROWS --output new",
        f"--model is /no/such, {UNREADABLE}",
    ),
    (
        EVALUATION + " new --benchmarks BROKEN.jsonl",
        "BROKEN.jsonl cannot be read: row 1: not UTF-8 (byte 0xe9 at position 17; convert it with iconv)",
    ),
    (
        EVALUATION.replace(MODEL, "no/such") + " new",
        f"--model is no/such, {UNREADABLE} (Cannot find",
    ),
    (
        EVALUATION + " ROWS/out",
        "--output is ROWS/out, which cannot be written to (Not a directory)",
    ),
    (EVALUATION + " new --samples 0", "--samples is 0; use at least 1"),
    (EVALUATION + " new --benchmarks aime26", "--benchmarks has 'aime26'"),
]


@pytest.mark.parametrize(
    ("line", "message"), LINES, ids=[line.replace(MODEL, "MODEL") for line, _ in LINES]
)
def test_a_wrong_command_line(tmp_path, line, message):
    (tmp_path / "ROWS").write_text('{"problem": "What is 100 + 100?", "answer": "200"}\n')
    (tmp_path / "ROWS.jsonl").write_bytes((tmp_path / "ROWS").read_bytes())
    (tmp_path / "EMPTY.jsonl").touch()
    (tmp_path / "FOLDER.jsonl").mkdir()
    (tmp_path / "BROKEN.jsonl").write_bytes(b'{"problem": "caf\xe9"}\n')
    before_it = sorted(path.name for path in tmp_path.iterdir())
    command, *flags = line.split()
    words = (
        ["openrlhf_swap", "eval", "run"]
        if command == "evaluation"
        else [f"openrlhf_swap.{command}"]
    )
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run(
        [sys.executable, "-m", *words, *flags],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (result.returncode, result.stdout) == (2, "")
    (error,) = result.stderr.splitlines()
    assert error.startswith("error: " + message)
    assert sorted(path.name for path in tmp_path.iterdir()) == before_it
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < SECONDS


def test_objectives_are_listed(capsys):
    assert run_command(train.main, ["--list-objectives"]) == 0
    shown = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line}
    assert {"swap", "grpo", "hapo", "--swap.hapo.weight"} <= shown


def test_a_reader_that_leaves_is_no_error(tmp_path):
    line = f"{sys.executable} -m openrlhf_swap.train --list-objectives | head -n 2"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    result = subprocess.run(
        ["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (len(result.stdout.splitlines()), result.stderr) == (2, "")
