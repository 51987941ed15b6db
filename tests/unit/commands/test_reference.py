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
    {"problem": "What is 111 + 222?", "answer": 333},
    {"problem": "", "answer": "1"},
    {"problem": "What is 123 + 456?", "answer": "579"},
]

TEXTS = [r"</think> \boxed{579}", r"\boxed{579}"]


@pytest.fixture
def engine(monkeypatch, tokenizer):
    """Half of its answers to a prompt are 579, the other half are 579 in a thought that does not
    end.
    """
    made = EngineOfVllm(tokenizer, lambda _, parameters: TEXTS * (parameters.n // 2))

    def open_engine(model, longest, max_model_len, **options):
        made.options = {"longest": longest, "max_model_len": max_model_len, **options}
        return made

    monkeypatch.setattr("openrlhf_swap.generate.open_engine", open_engine)
    return made


def run(tmp_path, *extra, rows=ROWS):
    texts = [{**row, "answer": str(row["answer"])} for row in rows]
    path = rows_file(tmp_path / "prompts.jsonl", texts)
    output = tmp_path / "new" / "reference.jsonl"
    flags = f"--model {POLICY} --dataset {path} --output {output} --samples 4"
    return run_command(reference.main, [*flags.split(), *extra])


def test_each_prompt_once(tmp_path, engine, tokenizer, capsys):
    assert run(tmp_path) == 0
    rendered = [f"<|user|>{row['problem']}<|assistant|><think>\n" for row in ROWS[:2]]
    assert [tokenizer.decode(ids) for ids, _ in engine.asked] == rendered
    path = tmp_path / "new" / "reference.jsonl"
    tokens = sum(len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in TEXTS) / 2
    assert list(read_rows(path)) == [  # as they finish
        {"key": prompt_key(rendered[1]), "accuracy": 0.0, "tokens": tokens},
        {"key": prompt_key(rendered[0]), "accuracy": 0.5, "tokens": tokens},
    ]

    # What is there is not sampled again; a line that was torn is.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])
    assert run(tmp_path) == 0
    assert len(engine.asked) == 3
    assert path.read_text() == "".join(lines)
    capsys.readouterr()
    assert run(tmp_path) == 0
    assert capsys.readouterr().out == f"{path} is complete\n"
    for flag, now, then in (("--temperature", "1.0", "0.6"), ("--max-tokens", "50", "12000")):
        assert run(tmp_path, flag, now) == 2
        line = f"error: {flag} is {now}, but the rows in {path} were made with {then}; use another"
        assert capsys.readouterr().err.splitlines()[-1].startswith(line)
    assert len(engine.asked) == 3
