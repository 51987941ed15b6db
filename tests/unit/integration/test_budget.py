"""Thoughts that are closed at their budget: what is generated, trained on, and cut into steps."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import CompletionOutput, SamplingParams
from vllm.logprobs import Logprob

from openrlhf_swap.integration.budget import ThoughtBudget
from openrlhf_swap.integration.driver.experience import experience_row, fit_context
from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.engine.responses import EngineRequest
from openrlhf_swap.rollouts.families import PLAIN, R1
from openrlhf_swap.rollouts.reader import ResponseReader, StepReader

PROMPT = "<|user|>What is 47 + 36?<|assistant|><think>\n"
END = "</think>"
CLOSE = "\n</think>\n\n"
LONG = "ones: 7+6+0=13\nhmm\nwait ones: 7+6+0=13\n"


class Model(actor.SwapRolloutActor):
    """Says one text from where its beginning ends, and an answer behind a thought that was closed.

    Each token has the log-probability -1.
    """

    def __init__(self, executor, tokenizer, budget, thought=LONG, answer="\\boxed{83}"):
        self.executor = executor
        self.asked = []
        self._tokenizer = tokenizer
        self._max_length = 200
        self._budget = budget
        self._old_thoughts = None
        self._text = [*ids_of(tokenizer, thought + CLOSE + answer), tokenizer.eos_token_id]
        self._answer = [*ids_of(tokenizer, answer), tokenizer.eos_token_id]

    async def generate(self, prompt_token_ids, sampling_params, **_):
        self.asked.append((len(prompt_token_ids), sampling_params))
        said = self._tokenizer.decode(prompt_token_ids).rpartition("<think>\n")[2]
        begun = len(ids_of(self._tokenizer, said))
        is_own = ids_of(self._tokenizer, said) == self._text[:begun]
        rest = self._text[begun:] if is_own else self._answer
        new = rest[: sampling_params.max_tokens]
        reason = "stop" if len(new) == len(rest) else "length"
        logprobs = [{token: Logprob(-1.0)} for token in new]
        text = self._tokenizer.decode(new)
        output = CompletionOutput(0, text, new, None, logprobs, finish_reason=reason)
        return SimpleNamespace(outputs=[output])


def ids_of(tokenizer, text):
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def budget_of(tokenizer, tokens, family=R1):
    reader = ResponseReader(tokenizer, family.end_of_thought)
    return ThoughtBudget(tokens, family.close_template, reader)


def graded():
    executor = SingleTurnAgentExecutor(None)
    executor.reward_func = lambda texts, *_: {"rewards": float("{83}" in texts[0])}
    executor.reward_endpoints = ["grade.py"]
    return executor


def drawn(tokenizer, tokens, executor=None, limit=100, **text):
    """The rollout that the model makes under a budget, and the requests that it took."""
    model = Model(executor or graded(), tokenizer, budget_of(tokenizer, tokens), **text)
    params = SamplingParams(max_tokens=limit, logprobs=1)
    request = EngineRequest(PROMPT, "83", 1, params, "1")
    ((rollout,),) = asyncio.run(model.respond(request))
    return rollout, model.asked


def test_a_thought_beyond_its_budget_is_closed_and_the_answer_follows(tokenizer):
    rollout, asked = drawn(tokenizer, 10)
    thought = ids_of(tokenizer, LONG)[:10]
    close = ids_of(tokenizer, CLOSE)
    answer = [*ids_of(tokenizer, "\\boxed{83}"), tokenizer.eos_token_id]
    assert rollout.response_ids == [*thought, *close, *answer]
    assert rollout.closing == [10, 11, 12, 13]
    assert rollout.reward == 1.0
    assert not rollout.truncated
    start = rollout.start
    assert [size for size, _ in asked] == [start, start + 14]
    assert [params.max_tokens for _, params in asked] == [10, 100 - 14]
    assert asked[0][1].seed != asked[1][1].seed

    row = experience_row(rollout, 200)
    expected = [0] * (start - 1) + [1] * 10 + [0] * 4 + [1] * len(answer)
    assert row.action_mask.tolist() == [expected]
    assert row.response_length.tolist() == [10 + len(answer)]
    assert row.rollout_log_probs.tolist() == [[-float(mask) for mask in expected]]
    cut = fit_context(rollout, start + 12)
    assert cut.closing == [10, 11]
    assert experience_row(cut, start + 12).action_mask.tolist() == [expected[: start + 11]]


@pytest.mark.parametrize(("tokens", "limit", "requests"), [(90, 100, 1), (96, 100, 1), (28, 60, 2)])
def test_a_thought_that_ends_by_itself_stays_as_it_was_sampled(tokenizer, tokens, limit, requests):
    """The second has no room for an answer behind its budget, and the third only goes on."""
    whole = [*ids_of(tokenizer, LONG + CLOSE + "\\boxed{83}"), tokenizer.eos_token_id]
    assert len(ids_of(tokenizer, LONG + CLOSE)) < 28 < len(whole) <= 60
    rollout, asked = drawn(tokenizer, tokens, limit=limit)
    assert rollout.response_ids == whole
    assert rollout.closing == []
    assert len(asked) == requests


def test_a_prompt_that_closes_the_thought_leaves_none_to_limit(tokenizer):
    budget = budget_of(tokenizer, 5)
    assert budget.first_limit(ids_of(tokenizer, PROMPT), 100) == 5
    assert budget.first_limit(ids_of(tokenizer, PROMPT + "</think>\n\n"), 100) == 100
    assert budget.least_limit == 5 + len(ids_of(tokenizer, CLOSE)) + 1
    assert budget.first_limit(ids_of(tokenizer, PROMPT), budget.least_limit - 1) == 9


def test_without_marks_the_close_opens_an_answer_and_a_stated_one_is_not_closed(tokenizer):
    def rest(text):
        ids = ids_of(tokenizer, text)
        cut = CompletionOutput(0, text, ids, None, None, finish_reason="length")
        return budget_of(tokenizer, len(ids), PLAIN).rest([1], cut, limit=100, seed=None)

    close = "\n\nThe final answer is $\\boxed{"
    closed = rest("2 + 3 is")
    assert closed.close == ids_of(tokenizer, close)
    assert closed.close_text == close
    assert closed.seed is None
    assert rest("So the answer is \\boxed{5").close == []


def test_each_turn_of_an_agent_has_the_budget(tokenizer):
    class Environment(AgentInstanceBase):
        def __init__(self):
            self.turns = 0

        async def step(self, state, **_):
            self.turns += 1
            assert state["action_text"].startswith(LONG[:4])
            done = self.turns == 2
            feedback = "" if done else "<|user|>again<|assistant|><think>\n"
            return {"rewards": torch.ones(1), "environment_feedback": feedback, "done": done}

    rollout, asked = drawn(tokenizer, 10, MultiTurnAgentExecutor(Environment))
    close = ids_of(tokenizer, CLOSE)
    first, second = rollout.turns
    assert first == second
    assert first[10:14] == close
    length = len(first)
    assert rollout.closing == [*range(10, 14), *range(length + 10, length + 14)]
    assert len(asked) == 4
    row = experience_row(rollout, 200)
    is_action = torch.zeros(len(rollout.row_ids), dtype=torch.int64)
    for place, position in enumerate(rollout.positions.tolist()):
        is_action[position] = place not in rollout.closing
    assert row.action_mask.tolist() == [is_action[1:].tolist()]

    reader = StepReader(tokenizer, END, step_tokens=5, max_steps=25)
    ends = reader.step_ends(rollout.response_ids, rollout.turn_starts, rollout.closing)
    assert not {*ends} & {*rollout.closing}
    assert ends[-1] == length + 9


@given(tokens=st.integers(1, 30), step_tokens=st.integers(1, 12), most=st.integers(1, 6))
def test_the_steps_of_a_closed_thought_are_those_of_its_own_tokens(
    tokenizer, tokens, step_tokens, most
):
    thought = ids_of(tokenizer, LONG)[:tokens]
    closed = [*thought, *ids_of(tokenizer, CLOSE + "\\boxed{83}")]
    closing = range(len(thought), len(thought) + 4)
    reader = StepReader(tokenizer, END, step_tokens, most)
    assert reader.step_ends(closed, (), closing) == reader.step_ends(thought)
