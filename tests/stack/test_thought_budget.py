"""A budget of the thought with the real engine; a training with one is in test_gpu_path.py."""

from contextlib import closing
from types import SimpleNamespace

import pytest
from support.paths import POLICY

from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT
from openrlhf_swap.rollouts.reader import ResponseReader

pytestmark = pytest.mark.slow
BUDGET = 20


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
