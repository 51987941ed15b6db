"""Budgets of the thought with the real engine."""

from contextlib import closing
from types import SimpleNamespace

import pytest
from support.paths import POLICY
from support.running import SMALL_STEPS, run_training, words

from openrlhf_swap.files import read_rows
from openrlhf_swap.quickstart.world import CLOSE
from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT
from openrlhf_swap.rollouts.reader import ResponseReader

pytestmark = pytest.mark.slow
BUDGET = 20


def test_a_training_closes_long_thoughts_and_goes_on(tmp_path, prompts_file, tokenizer):
    """The table has all responses of the step, whose metrics are counted again from their texts."""
    flags = words(
        f"--rollout.thought_budget {BUDGET} --data.max_samples 8 --swap.rollouts_every 1 "
        "--swap.rollouts_groups 8 --algo.advantage.is_correction_level token"
    )
    (row,) = run_training(tmp_path / "run", prompts_file, *SMALL_STEPS, *flags)
    reader = ResponseReader(tokenizer, END_OF_THOUGHT)
    (table,) = (tmp_path / "run" / "rollouts").iterdir()
    responses = list(read_rows(table))
    assert len(responses) == 32
    close = reader.ids(CLOSE.partition("**")[0])
    closed = 0
    for response in responses:
        ids = reader.ids(response["response"])
        thought = reader.thought_length(ids)
        assert thought <= BUDGET
        closed += thought == BUDGET and ids[BUDGET : BUDGET + len(close)] == close
        assert all(step["end"] < BUDGET for step in response["steps"])
    assert row["swap/thought_forced_frac"] == pytest.approx(closed / 32)
    assert closed > 0
    assert row["swap/forced_tokens"] == pytest.approx(len(close) * closed / 32)
    assert row["length/mean"] - row["response_length"] == pytest.approx(row["swap/forced_tokens"])
    assert row["swap/thought_unclosed_frac"] == 0
    assert row["vllm_kl"] < 1e-2


def test_the_budget_does_what_vllms_own_does_token_by_token(tokenizer):
    """vLLM also counts the newline with which the template opens the thought."""
    from vllm.config import ReasoningConfig

    from openrlhf_swap.evaluation.generate import generate_within
    from openrlhf_swap.generate import close_engine, generate, open_engine
    from openrlhf_swap.integration.budget import ThoughtBudget
    from openrlhf_swap.rollouts.families import prompt_ids

    marks = ReasoningConfig(reasoning_start_str="<think>", reasoning_end_str=END_OF_THOUGHT)
    engine = open_engine(str(POLICY), longest=400, reasoning_config=marks)
    with closing(SimpleNamespace(close=lambda: close_engine(engine))):
        budget = ThoughtBudget(BUDGET, END_OF_THOUGHT, ResponseReader(tokenizer, END_OF_THOUGHT))
        prompts = []
        for first in range(20, 36):
            prompts.append(prompt_ids(tokenizer, f"What is {first} + {first + 41}?"))
        greedy = {"temperature": 0.0, "max_tokens": 120, "seed": 1}
        own = {**greedy, "thinking_token_budget": BUDGET + 1}
        theirs = dict(generate(engine, [(prompt, own) for prompt in prompts]))
        asked = [(prompt, greedy) for prompt in prompts]
        ours = dict(generate_within(engine, asked, budget))
    assert any(sampled.was_closed for sampled in ours.values())
    for number, (output,) in theirs.items():
        assert list(ours[number].response.token_ids) == list(output.token_ids)
