"""The reference accuracies, with a stand-in for vLLM that answers by rule."""

import pytest
from support.command_lines import rows_file
from support.engine_of_vllm import EngineOfVllm
from support.paths import POLICY

from openrlhf_swap import reference
from openrlhf_swap.command import run_command
from openrlhf_swap.files import read_rows
from openrlhf_swap.rollouts.rollout import prompt_key

ROWS = [
    {"problem": "What is 123 + 456?", "answer": "579"},
    {"problem": "What is 111 + 222?", "answer": "333"},
    {"problem": "", "answer": "1"},
    {"problem": "What is 123 + 456?", "answer": "579"},
]
# To every prompt: 579 as the answer, and in a thought that does not end.
TEXTS = [r"</think> \boxed{579}", r"\boxed{579}"]


@pytest.fixture
def engine(monkeypatch, tokenizer):
    made = EngineOfVllm(tokenizer, lambda _, parameters: TEXTS * (parameters.n // 2))
    monkeypatch.setattr("openrlhf_swap.generate.open_engine", lambda *_, **__: made)
    return made


@pytest.fixture
def run(tmp_path):
    """A function that starts the command with further flags; returns its status."""
    prompts = rows_file(tmp_path / "prompts.jsonl", ROWS)
    output = tmp_path / "new" / "reference.jsonl"
    flags = f"--model {POLICY} --dataset {prompts} --output {output} --samples 4"
    return lambda *more: run_command(reference.main, [*flags.split(), *more])


def test_each_prompt_once(tmp_path, run, engine, tokenizer, capsys):
    assert run() == 0
    rendered = [f"<|user|>{row['problem']}<|assistant|><think>\n" for row in ROWS[:2]]
    assert [tokenizer.decode(ids) for ids, _ in engine.asked] == rendered
    path = tmp_path / "new" / "reference.jsonl"
    lengths = [len(ids) for ids in tokenizer(TEXTS, add_special_tokens=False)["input_ids"]]
    tokens = sum(lengths) / 2
    assert list(read_rows(path)) == [  # as they finish
        {"key": prompt_key(rendered[1]), "accuracy": 0.0, "tokens": tokens},
        {"key": prompt_key(rendered[0]), "accuracy": 0.5, "tokens": tokens},
    ]

    # What is there is not sampled again; a line that was torn is.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])
    assert run() == 0
    assert len(engine.asked) == 3
    assert path.read_text() == "".join(lines)
    capsys.readouterr()
    assert run() == 0
    assert capsys.readouterr().out == f"{path} is complete\n"
    for flag, now, then in (("--temperature", "1.0", "0.6"), ("--max-tokens", "50", "12000")):
        assert run(flag, now) == 2
        line = f"error: {flag} is {now}, but the rows in {path} were made with {then}; use another"
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    assert len(engine.asked) == 3
