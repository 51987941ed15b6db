"""Forced answers, with a small program in the place of the engine."""

from support.engine_of_vllm import EngineOfVllm

from openrlhf_swap.command import run_command
from openrlhf_swap.evaluation import forced
from openrlhf_swap.evaluation.samples import rows_path
from openrlhf_swap.files import read_rows
from openrlhf_swap.rollouts.families import prompt_ids

CLOSE = "</think>\\boxed{"


def test_longer_responses_answer_at_the_budget_and_shorter_ones_count_as_they_are(
    asked, tokenizer, monkeypatch
):
    engine = EngineOfVllm(tokenizer, lambda *_: ["2}"])
    monkeypatch.setattr(forced, "open_engine", lambda model, **options: engine)
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
    start = len(prompt_ids(tokenizer, "1 + 1 Think."))
    first, second, last = (prompts[n][start:] for n in (0, 4, -1))
    assert first == ids_of("a") + ids_of(CLOSE) and last == ids_of(CLOSE)
    assert second == ids_of("a</think>\\boxed{3}")[:10]  # its thought has ended
