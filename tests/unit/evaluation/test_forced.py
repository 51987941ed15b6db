"""Forced answers, with a small program in the place of the engine."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
from support.paths import POLICY

from openrlhf_swap.command import run_command
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import DataError
from openrlhf_swap.evaluation import forced
from openrlhf_swap.evaluation.samples import problems_path, read_settings, samples_path, seed_of, settings_path
from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.rollouts.families import prompt_ids

CLOSE = "</think>\\boxed{"


class Engine:
    """What is used of vLLM: it writes the same answer to every prompt."""

    def __init__(self, tokenizer):
        self.tokenizer, self.prompts = tokenizer, []

    def get_tokenizer(self):
        return self.tokenizer

    def generate(self, prompts, parameters):
        self.prompts += [prompt["prompt_token_ids"] for prompt in prompts]
        if isinstance(parameters, list):
            self.parameters = [vars(one) for one in parameters]
            return [SimpleNamespace(outputs=[SimpleNamespace(text="b</think>\\boxed{4}")]) for _ in prompts]
        assert vars(parameters) == {"temperature": 0, "max_tokens": 64, "skip_special_tokens": False}
        return [SimpleNamespace(outputs=[SimpleNamespace(text="2}")]) for _ in prompts]


@pytest.fixture
def asked(evaluated, monkeypatch):
    """The evaluations with their problems."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))
    rows = [{"id": "p", "problem": "1 + 1", "answer": "2"}, {"id": "q", "problem": "2 + 2", "answer": "4"}]
    write_rows(problems_path(evaluated / "base", "own"), rows)
    settings = {**read_settings(evaluated / "base"), "model": str(POLICY)}
    settings_path(evaluated / "base").write_text(json.dumps(settings))
    return evaluated / "base"


def test_longer_responses_answer_at_the_budget_and_shorter_ones_count_as_they_are(
    asked, tokenizer, monkeypatch, capsys
):
    engine, opened = Engine(tokenizer), []
    opening = SimpleNamespace(open_engine=lambda model, **options: opened.append(options) or engine)
    monkeypatch.setitem(sys.modules, "openrlhf_swap.integration.generation.engine", opening)
    budgets = ["--budgets", "1", "10", "30", "1000", "0"]
    assert run_command(forced.main, [str(asked), *budgets, "--close-template", CLOSE]) == 0
    # p has 10 tokens (right) and 30, q has 50 (right) and 70. Cut after one token or none all answer 2, which is right
    # for p; after ten, the second response to p is in its box already and answers 32.
    accuracies = {1: 0.5, 10: 0.25, 30: 0.25, 1000: 0.5, 0: 0.5}
    rows = [{"budget": budget, "accuracy": accuracy, "by": "cut"} for budget, accuracy in accuracies.items()]
    assert list(read_rows(forced.forced_path(asked, "own"))) == rows
    assert "own: 25.0% correct when forced to answer after 30 tokens\n" in capsys.readouterr().out

    assert len(engine.prompts) == 4 + 3 + 2 + 4
    (start,) = {len(prompt_ids(tokenizer, f"{problem} Think.")) for problem in ("1 + 1", "2 + 2")}
    first, second, last = (engine.prompts[n][start:] for n in (0, 4, -1))
    close = tokenizer(CLOSE, add_special_tokens=False)["input_ids"]
    assert opened == [{"trust_remote_code": False, "longest": start + 1000 + len(close) + 64}]
    assert first == tokenizer("a", add_special_tokens=False)["input_ids"] + close and last == close
    assert second == tokenizer("a</think>\\boxed{3}", add_special_tokens=False)["input_ids"][:10]  # it has ended


def test_budgets_given_to_vllm_resample_longer_thoughts_with_their_own_seeds(asked, tokenizer, monkeypatch):
    engine, opened = Engine(tokenizer), []
    opening = SimpleNamespace(open_engine=lambda model, **options: opened.append(options) or engine)
    monkeypatch.setitem(sys.modules, "openrlhf_swap.integration.generation.engine", opening)
    settings = {**read_settings(asked), "seed": 7, "temperature": 0.6, "max_tokens": 90}
    settings_path(asked).write_text(json.dumps({**settings, "top_p": 0.95}))
    write_rows(forced.forced_path(asked, "own"), [{"budget": 1, "accuracy": 0.5}])  # by a cut, of an older version
    assert (
        run_command(forced.main, [str(asked), "--budgets", "28", "8", "--by", "vllm", "--swap.trust_remote_code"]) == 0
    )
    thought = {"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}
    longest = len(prompt_ids(tokenizer, "1 + 1 Think.")) + 90
    assert opened == [{"trust_remote_code": True, "reasoning_config": thought, "longest": longest}]
    # Thoughts of 8 (right), 28, 48 (right) and 68 tokens to p, p, q, q; what is sampled again answers 4.
    rows = [
        {"budget": 1, "accuracy": 0.5},
        {"budget": 28, "accuracy": 0.75, "by": "vllm"},
        {"budget": 8, "accuracy": 0.75, "by": "vllm"},
    ]
    assert list(read_rows(forced.forced_path(asked, "own"))) == rows
    assert [one.pop("seed") for one in engine.parameters] == [
        seed_of("own", *sample, 7) for sample in (("p", 1), ("q", 0), ("q", 1))
    ]
    expected = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 90, "skip_special_tokens": False}
    assert engine.parameters == [{**expected, "thinking_token_budget": 8}] * 3
    assert engine.prompts[-1] == prompt_ids(tokenizer, "2 + 2 Think.")


def test_without_graded_samples_there_is_nothing_to_force(asked, tokenizer, tmp_path, capsys):
    samples_path(asked, "own").unlink()
    with pytest.raises(DataError, match="holds no graded samples of own; make them with"):
        forced.force(asked, "own", [9], Engine(tokenizer), SwapConfig(), {"suffix": ""})
    assert run_command(forced.main, [str(tmp_path / "nothing"), "--budgets", "9"]) == 2
    assert "nothing holds no graded samples; make them with python -m evaluation.run" in capsys.readouterr().err


def test_a_model_with_code_of_its_own_is_refused_unless_it_is_trusted(asked, tmp_path, capsys):
    model = shutil.copytree(POLICY, tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoConfig": "own.Config"}}))
    settings_path(asked).write_text(json.dumps({**read_settings(asked), "model": str(model)}))
    assert run_command(forced.main, [str(asked), "--budgets", "9"]) == 2
    message = f"error: the model of {asked} is {model}, which brings Python code of its own"
    assert capsys.readouterr().err.startswith(message)


def test_a_negative_budget_is_refused_before_anything_is_read(tmp_path, capsys):
    assert run_command(forced.main, [str(tmp_path / "nothing"), "--budgets", "9", "-1", "0"]) == 2
    assert capsys.readouterr().err == "error: --budgets has -1; use 0 or more tokens\n"
