"""The rollout actor: reward functions, agents that fail, seeds, and the end of its engine."""

import asyncio
import json
import math
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor, SingleTurnAgentExecutor
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.driver.rows import experience_row, fit_context
from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.engine.responses import EngineRequest, read_response
from openrlhf_swap.rewards.openrlhf_reward import reward_func

RESPONSE = {  # as OpenRLHF's executor returns it, without its reward
    "prompt": "p",
    "label": "4",
    "observation_tokens": [1, 2],
    "action_ranges": [(1, 2)],
    "reward": None,
    "scores": None,
    "rollout_log_probs": None,
}


class Actor(actor.SwapRolloutActor):
    """An actor with an executor, and with texts that its engine samples, one a turn."""

    def __init__(self, executor, tokenizer=None, texts=()):
        self.executor = executor
        self.asked = []
        self._tokenizer = tokenizer
        self._max_length = 99
        self._texts = iter(texts)
        self.llm = self

    async def generate(self, ids, params, *_, **__):
        self.asked.append(params)
        text = next(self._texts)
        new = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        output = SimpleNamespace(token_ids=new, text=text, finish_reason="stop", logprobs=None)
        return SimpleNamespace(outputs=[output])


def told(function, **settings):
    """A reward function as the actor calls it, after it was told what closes a thought."""
    executor = SingleTurnAgentExecutor(None)
    executor.reward_func = function
    Actor(executor).prepare(None, 99, end_of_thought="[/THINK]", **settings)
    return executor.reward_func


def test_our_reward_function_reads_the_thought_of_the_models_family():
    query = r"p \boxed{41}[/THINK]\boxed{42}"
    assert told(reward_func)([query], ["p "], ["41"])["rewards"] == 0.0
    assert told(reward_func)([query], ["p "], ["42"])["rewards"] == 1.0


def test_a_reward_function_that_does_not_ask_is_called_as_it_is():
    asked = []

    def own(queries, prompts, labels):
        asked.append((queries, prompts, labels))
        return {"rewards": 1.0, "extra_logs": {"mine": 2.0}}

    assert told(own)(["pr"], ["p"], ["l"]) == {"rewards": 1.0, "extra_logs": {"mine": 2.0}}
    assert asked == [(["pr"], ["p"], ["l"])]
    assert told(None) is None


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda *_: {"rewards": 1 / 0}, "ZeroDivisionError: division by zero"),
        (lambda *_: {"scores": 1.0}, "KeyError: 'rewards'"),
        (lambda *_: 1.0, "TypeError: 'float' object is not subscriptable"),
    ],
)
def test_a_reward_function_that_fails_says_why(function, reason):
    """OpenRLHF drops what a reward function raises; the driver names it."""
    result = told(function)(["pr"], ["p"], ["l"])
    with pytest.raises(DataError) as error:
        read_response({**RESPONSE, "reward": result["rewards"], "extra_logs": result["extra_logs"]})
    start = "the reward function of --reward.remote_url gave no reward for a response: "
    assert str(error.value) == start + reason


class RewardServer(BaseHTTPRequestHandler):
    """Answers a query as `openrlhf.cli.serve_rm` does."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scores = [float(len(query)) for query in asked["query"]]
        body = {"rewards": scores, "scores": scores, "extra_logs": {"dummy_scores": scores}}
        content = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


def drawn(tokenizer, executor, *texts, seed="1", count=1):
    """The rollouts that the actor makes of these texts, and the actor."""
    made = Actor(executor, tokenizer, texts)
    params = SamplingParams(max_tokens=40)
    request = EngineRequest("What is 47 + 36?", "83", count, params, seed)
    (rollouts,) = asyncio.run(made.respond(request))
    return rollouts, made


def test_openrlhfs_reward_server_can_be_used(tokenizer):
    with ThreadingHTTPServer(("127.0.0.1", 0), RewardServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        executor = SingleTurnAgentExecutor(f"http://127.0.0.1:{server.server_port}/get_reward")
        ((rollout,), _) = drawn(tokenizer, executor, "83")
        server.shutdown()
    length = float(len("What is 47 + 36?83"))
    assert (rollout.reward, rollout.record["scores"]) == (length, length)
    assert rollout.record["extra_logs"] == {"dummy_scores": length}


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
        assert rollout == expected and rollout.record == expected.record
        assert (rollout.observations, rollout.turns) == ([], [rollout.response_ids])
        for context in (99, len(rollout.row_ids) - 1):  # the second one cuts it
            ours = vars(experience_row(fit_context(rollout, context), context))
            for name, value in vars(
                experience_row(fit_context(expected, context), context)
            ).items():
                assert (
                    torch.equal(ours[name], value)
                    if isinstance(value, torch.Tensor)
                    else ours[name] == value
                ), name


RESULT = {"rewards": torch.ones(1), "environment_feedback": "", "done": True}
FAILED = "the agent of --train.agent_func_path failed with "
GAVE = "--train.agent_func_path gave "


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (LookupError("no"), FAILED + "LookupError: no; the traceback is in train.log"),
        (ValueError("two\nlines"), FAILED + "ValueError: two; the traceback"),
        (None, FAILED + "TypeError: 'NoneType' object is not subscriptable"),
        ({"done": True}, FAILED + "KeyError: 'rewards'"),
        ({**RESULT, "rewards": 1.0}, FAILED + "AttributeError: 'float' object has no attribute"),
        ({**RESULT, "rewards": torch.ones(2)}, FAILED + "RuntimeError: a Tensor with 2 elements"),
        ({**RESULT, "environment_feedback": 3}, FAILED + "ValueError: text input must be of type"),
        ({**RESULT, "rewards": torch.tensor(math.nan)}, GAVE + "nan as the reward of a response"),
        ({**RESULT, "extra_logs": {"calls": [1, 2]}}, GAVE + "[1, 2] as calls of a response"),
    ],
)
def test_an_environment_that_fails_or_returns_nonsense_is_one_line(tokenizer, result, message):
    def step(action, label):
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(DataError) as error:
        drawn(tokenizer, agent(step), "13")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def graded():
    executor = SingleTurnAgentExecutor(None)
    executor.reward_func = lambda *_: {"rewards": 1.0}
    executor.reward_endpoints = ["grade.py"]
    return executor


def test_responses_differ_by_seed_and_number_only(tokenizer):
    """Python sees each of them once: when it is finished."""
    _, first = drawn(tokenizer, graded(), "1", "2", count=2)
    _, again = drawn(tokenizer, graded(), "1", "2", count=2)
    _, other = drawn(tokenizer, graded(), "1", "2", count=2, seed="2")
    seeds = [[params.seed for params in made.asked] for made in (first, again, other)]
    assert seeds[0] == seeds[1] and len({*seeds[0], *seeds[2]}) == 4
    _, unseeded = drawn(tokenizer, graded(), "1", seed=None)
    assert unseeded.asked[0].seed is None
    kinds = {params.output_kind for made in (first, unseeded) for params in made.asked}
    assert kinds == {RequestOutputKind.FINAL_ONLY}


def test_a_text_is_tokenised_once_for_all_responses_to_it(tokenizer):
    asked = []

    def counting(text, **options):
        asked.append(text)
        return tokenizer(text=text, **options)

    once = actor.PromptTokenizer(counting, "1 + 1")
    options = {"add_special_tokens": False, "return_tensors": "pt"}
    expected = tokenizer("1 + 1", **options)["input_ids"]
    assert all(torch.equal(once(text="1 + 1", **options)["input_ids"], expected) for _ in range(9))
    known = actor.PromptTokenizer(counting, "1 + 1", [5, 6])
    assert known(text="1 + 1", **options)["input_ids"].tolist() == [[5, 6]]
    assert asked == ["1 + 1"]


def test_the_actor_ends_with_its_engine_and_not_before(monkeypatch):
    looks = []

    async def check_health():
        looks.append(1)
        if len(looks) == 3:
            raise EngineDeadError

    def end(status):
        raise InterruptedError  # in place of the end of the process

    monkeypatch.setattr(actor, "HEALTH_SECONDS", 0.01)
    monkeypatch.setattr(actor.os, "_exit", end)
    made = Actor(None)
    made.llm = SimpleNamespace(check_health=check_health)
    with pytest.raises(InterruptedError):
        asyncio.run(asyncio.wait_for(made.exit_with_engine(), 60))
    assert len(looks) == 3
