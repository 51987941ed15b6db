"""The rollout actor: reward functions, agents that fail, seeds, and the end of its engine."""

import asyncio
import math
import operator
from types import SimpleNamespace

import pytest
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.driver.experience import experience_row, fit_context
from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.engine.responses import EngineRequest


class Actor(actor.SwapRolloutActor):
    """An actor with an executor, and with texts that its engine samples, one a turn."""

    def __init__(self, executor, tokenizer=None, texts=()):
        self.executor = executor
        self.asked = []
        self._tokenizer = tokenizer
        self._max_length = 99
        self._budget = None
        self._old_thoughts = None
        self._texts = iter(texts)
        self.llm = self

    async def generate(self, ids, params, *_, **__):
        self.asked.append(params)
        text = next(self._texts)
        new = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        output = SimpleNamespace(token_ids=new, text=text, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def drawn(tokenizer, executor, *texts, seed="1", count=1):
    """The rollouts that the actor makes of these texts, and the actor."""
    made = Actor(executor, tokenizer, texts)
    params = SamplingParams(max_tokens=40)
    request = EngineRequest("What is 47 + 36?", "83", count, params, seed)
    (rollouts,) = asyncio.run(made.respond(request))
    return rollouts, made


def agent(step):
    """An executor whose environment takes steps by this function of an action and the label."""

    class Environment(AgentInstanceBase):
        def __init__(self):
            pass

        async def step(self, state, **_):
            return step(state["action_text"], state["label"])

    return MultiTurnAgentExecutor(Environment)


def test_an_agent_of_one_turn_is_no_other_than_a_reward_function(tokenizer):
    """All that follows is computed from the rollout and from OpenRLHF's row of it."""

    def grade(queries, prompts, labels):
        score = float(queries[0].endswith(labels[0] + "}"))
        return {"rewards": torch.tensor(score), "scores": score, "extra_logs": {"mine": 2.0}}

    def step(action, label):
        return {**grade([action], [], [label]), "environment_feedback": "", "done": True}

    plain = SingleTurnAgentExecutor(None)
    plain.reward_func = grade
    plain.reward_endpoints = ["grade.py"]
    for text in ("ones: 7+6+0=13\n</think>\n\n\\boxed{83}", "\\boxed{84}"):
        (expected,), _ = drawn(tokenizer, plain, text)
        (rollout,), _ = drawn(tokenizer, agent(step), text)
        assert rollout == expected
        assert rollout.record == expected.record
        assert rollout.observations == []
        assert rollout.turns == [rollout.response_ids]
        for context in (99, len(rollout.row_ids) - 1):  # the second one cuts it
            ours = vars(experience_row(fit_context(rollout, context), context))
            theirs = vars(experience_row(fit_context(expected, context), context))
            for name, value in theirs.items():
                same = torch.equal if isinstance(value, torch.Tensor) else operator.eq
                assert same(ours[name], value), name


def test_what_each_turn_was_paid_is_known(tokenizer):
    """OpenRLHF returns the sum; each response has an environment of its own."""

    def step(action, label):
        pays = {"1": -0.5, "2": 0.25, "3": 1.0}[action]
        more = {"environment_feedback": "ok", "done": action == "3"}
        logs = None if action == "1" else {"calls": 2}
        return {"rewards": torch.tensor(pays), "extra_logs": logs, **more}

    executor = agent(step)
    Actor(executor).prepare(tokenizer, 99, budget=None, old_thoughts=None)
    (first, second), _ = drawn(tokenizer, executor, "1", "2", "3", "2", "3", count=2)
    assert first.turn_rewards == [-0.5, 0.25, 1.0]
    assert second.turn_rewards == [0.25, 1.0]
    assert first.reward == sum(first.turn_rewards)
    assert first.record["extra_logs"] == {"calls": 2}


RESULT = {"rewards": torch.ones(1), "environment_feedback": "", "done": True}
FAILED = "the agent of --train.agent_func_path failed with "
GAVE = "--train.agent_func_path gave "


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (ValueError("two\nlines"), FAILED + "ValueError: two; the traceback"),
        ({"done": True}, FAILED + "KeyError: 'rewards'"),
        ({**RESULT, "rewards": 1.0}, FAILED + "AttributeError: 'float' object has no attribute"),
        ({**RESULT, "rewards": torch.tensor(math.nan)}, GAVE + "nan as the reward of a response"),
    ],
)
def test_an_environment_that_fails_or_returns_nonsense_is_one_line(tokenizer, result, message):
    def step(action, label):
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(DataError) as error:
        drawn(tokenizer, agent(step), "13")
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def graded():
    executor = SingleTurnAgentExecutor(None)
    executor.reward_func = lambda *_: {"rewards": 1.0}
    executor.reward_endpoints = ["grade.py"]
    return executor


def seeds_of(actor):
    """The seeds with which the actor has asked its engine."""
    return [params.seed for params in actor.asked]


def test_responses_differ_by_seed_and_number_only(tokenizer):
    """Python sees each of them once: when it is finished."""
    _, first = drawn(tokenizer, graded(), "1", "2", count=2)
    _, again = drawn(tokenizer, graded(), "1", "2", count=2)
    _, other = drawn(tokenizer, graded(), "1", "2", count=2, seed="2")
    seeds = seeds_of(first)
    assert seeds_of(again) == seeds
    assert len({*seeds, *seeds_of(other)}) == 4
    _, unseeded = drawn(tokenizer, graded(), "1", seed=None)
    assert unseeded.asked[0].seed is None
    for params in [*first.asked, *unseeded.asked]:
        assert params.output_kind == RequestOutputKind.FINAL_ONLY
