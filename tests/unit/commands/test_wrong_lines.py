"""Wrong command lines as a user types them: one line, status 2, mostly at once."""

import pytest
from support.paths import POLICY

from openrlhf_swap.__main__ import main

DATA = "--data.prompt_dataset ROWS --data.input_key problem --data.label_key answer"
GOOD = f"train --actor.model_name_or_path {POLICY} {DATA}"
SCORE = f"score --model {POLICY} --output new"
EVALUATION = f"eval run --model {POLICY} --output"
UNREADABLE = "which cannot be read"
DIRECTORY = "which cannot be written to (Not a directory)"
# The line -> how its error begins.
LINES = {
    "train --swap.lenght_coef 1": "unrecognized arguments: --swap.lenght_coef 1; did you mean --s",
    "train": "--actor.model_name_or_path is missing; give a Hugging Face model or a folder",
    GOOD.removesuffix(" --data.label_key answer"): "--data.label_key is missing; name the column",
    GOOD.replace(str(POLICY), "/no/such"): f"--actor.model_name_or_path is /no/such, {UNREADABLE}",
    "train --swap.objective nowhere:Mine": "--swap.objective is 'nowhere:Mine', which cannot be im",
    GOOD.replace("ROWS", "no.jsonl"): f"--data.prompt_dataset is no.jsonl, {UNREADABLE}: [Errno 2]",
    GOOD.replace("ROWS", "EMPTY.jsonl,ROWS.jsonl"): "--data.prompt_dataset is EMPTY.jsonl, which c",
    GOOD.replace("ROWS", "ROWS.jsonl").replace("answer", "gold"): "--data.label_key is gold, but R"
    "OWS.jsonl has no such column; its columns are: problem, answer",
    f"{GOOD} --swap.output_dir ROWS/out": f"--swap.output_dir is ROWS/out, {DIRECTORY}",
    f"{GOOD} --ckpt.path ROWS": f"--ckpt.path is ROWS, {DIRECTORY}",
    f"{SCORE} --input ROWS.jsonl": "--input is ROWS.jsonl, of which no row can be scored: row 1: n",
    "score --model no/such --output new --input ROWS": f"--model is no/such, {UNREADABLE} (Cannot",
    "reference --model /no/such --dataset ROWS --output new": f"--model is /no/such, {UNREADABLE}",
    f"{EVALUATION} new --benchmarks BROKEN.jsonl": "BROKEN.jsonl cannot be read: row 1: not UTF-8",
    f"{EVALUATION} ROWS/out": f"--output is ROWS/out, {DIRECTORY}",
    f"{EVALUATION} new --benchmarks aime26": "--benchmarks has 'aime26'",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "ROWS").write_text('{"problem": "What is 100 + 100?", "answer": "200"}\n')
    (tmp_path / "ROWS.jsonl").write_bytes((tmp_path / "ROWS").read_bytes())
    (tmp_path / "EMPTY.jsonl").touch()
    (tmp_path / "DIR.jsonl").mkdir()
    (tmp_path / "BROKEN.jsonl").write_bytes(b'{"problem": "caf\xe9"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("line", LINES, ids=[line.replace(str(POLICY), "MODEL") for line in LINES])
def test_a_wrong_command_line(folder, capsys, line):
    before = sorted(path.name for path in folder.iterdir())
    assert main(line.split()) == 2
    output = capsys.readouterr()
    (error,) = [each for each in output.err.splitlines() if each.startswith("error: ")]
    assert output.out == "" and error.startswith(f"error: {LINES[line]}")
    assert sorted(path.name for path in folder.iterdir()) == before
