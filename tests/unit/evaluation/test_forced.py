"""Forced answers, with a small program in the place of the engine."""

import json
import shutil

from support.engine_of_vllm import EngineOfVllm
from support.paths import POLICY

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import forced
from openrlhf_swap.evaluation.samples import read_settings, rows_path, settings_path
from openrlhf_swap.files import read_rows
from openrlhf_swap.rollouts.families import prompt_ids

CLOSE = "</think>\\boxed{"


def test_longer_responses_answer_at_the_budget_and_shorter_ones_count_as_they_are(
    asked, tokenizer, monkeypatch
):
    engine, opened = EngineOfVllm(tokenizer, lambda *_: ["2}"]), []
    monkeypatch.setattr(
        forced, "open_engine", lambda model, **options: opened.append(options) or engine
    )
    budgets = ["--budgets", "1", "10", "30", "1000", "0"]
    assert run_command(forced.main, [str(asked), *budgets, "--swap.close_template", CLOSE]) == 0
    # p has 10 tokens (right) and 30, q has 50 (right) and 70. Cut after one token or none all
    # answer 2, which is right for p; after ten, the second response to p is in its box already and
    # answers 32.
    accuracies = {1: 0.5, 10: 0.25, 30: 0.25, 1000: 0.5, 0: 0.5}
    rows = [{"budget": budget, "accuracy": accuracy} for budget, accuracy in accuracies.items()]
    assert list(read_rows(rows_path("forced", asked, "own"))) == rows

    def ids_of(text):
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    prompts = [ids for ids, _ in engine.asked]
    assert len(prompts) == 4 + 3 + 2 + 4
    sampling = {(parameters.temperature, parameters.max_tokens) for _, parameters in engine.asked}
    assert sampling == {(0, 64)}
    start = len(prompt_ids(tokenizer, "1 + 1 Think."))
    first, second, last = (prompts[n][start:] for n in (0, 4, -1))
    assert first == ids_of("a") + ids_of(CLOSE) and last == ids_of(CLOSE)
    assert second == ids_of("a</think>\\boxed{3}")[:10]  # its thought has ended
    longest = start + 1000 + len(ids_of(CLOSE)) + 64
    assert opened == [{"trust_remote_code": False, "longest": longest, "max_model_len": None}]


def test_a_model_with_code_of_its_own_is_refused_unless_it_is_trusted(asked, tmp_path, capsys):
    model = shutil.copytree(POLICY, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "own.Config"}
    (model / "config.json").write_text(json.dumps(config))
    settings_path(asked).write_text(json.dumps({**read_settings(asked), "model": str(model)}))
    assert run_command(forced.main, [str(asked), "--budgets", "9"]) == 2
    message = f"error: the model of {asked} is {model}, which brings Python code of its own"
    assert capsys.readouterr().err.startswith(message)
