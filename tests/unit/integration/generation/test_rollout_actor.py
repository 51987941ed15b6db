"""What the rollout actor tells the reward function, how agents fail, and what it does when its
engine ends.
"""

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
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.engine.output_processor import OutputProcessor

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.generation import rollout_actor
from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor
from openrlhf_swap.integration.generation.sampling import make_sample, read_response
from openrlhf_swap.rewards.openrlhf_reward import reward_func

RESPONSE = {  # as OpenRLHF's actor returns it, without its reward
    "prompt": "p",
    "label": "4",
    "observation_tokens": [1, 2],
    "action_ranges": [(1, 2)],
    "reward": None,
    "scores": None,
    "rollout_log_probs": None,
}


@pytest.fixture
def told():
    """A reward function as the actor calls it, after it was told what closes a thought."""

    class Actor(SwapRolloutActor):
        """Without an engine: it grades only."""

        def __init__(self, function):
            self.executor = SingleTurnAgentExecutor(None)
            self.executor.reward_func = function

    def tell(function, **settings):
        actor = Actor(function)
        actor.configure_reward(end_of_thought="[/THINK]", **settings)
        return actor.executor.reward_func

    return tell


def test_our_reward_function_reads_the_thought_of_the_models_family(told):
    query = r"p \boxed{41}[/THINK]\boxed{42}"
    assert told(reward_func)([query], ["p "], ["41"])["rewards"] == 0.0
    assert told(reward_func)([query], ["p "], ["42"])["rewards"] == 1.0


def test_a_reward_function_that_does_not_ask_is_called_as_it_is(told):
    asked = []

    def own(queries, prompts, labels):
        asked.append((queries, prompts, labels))
        return {"rewards": 1.0, "extra_logs": {"mine": 2.0}}

    assert told(own)(["pr"], ["p"], ["l"]) == {"rewards": 1.0, "extra_logs": {"mine": 2.0}}
    assert asked == [(["pr"], ["p"], ["l"])]
    assert told(None) is None


def test_a_reward_function_that_fails_says_why(told):
    """OpenRLHF drops what a reward function raises; the trainer names it."""
    functions = {
        "ZeroDivisionError: division by zero": lambda queries, prompts, labels: {"rewards": 1 / 0},
        "KeyError: 'rewards'": lambda queries, prompts, labels: {"scores": 1.0},
        "TypeError: 'float' object is not subscriptable": lambda queries, prompts, labels: 1.0,
        "TypeError: float() argument must be a string or a real number, not 'NoneType'": (
            lambda queries, prompts, labels: {"rewards": None}
        ),
    }
    for reason, function in functions.items():
        result = told(function)(["pr"], ["p"], ["l"])
        with pytest.raises(DataError) as error:
            read_response(
                {**RESPONSE, "reward": result["rewards"], "extra_logs": result["extra_logs"]}
            )
        assert str(error.value) == (
            f"the reward function of --reward.remote_url gave no reward for a response: {reason}"
        )


class RewardServer(BaseHTTPRequestHandler):
    """Answers a query as `openrlhf.cli.serve_rm` does."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scores = [float(len(query)) for query in asked["query"]]
        body = json.dumps(
            {"rewards": scores, "scores": scores, "extra_logs": {"dummy_scores": scores}}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("seed", [None, "1"])
def test_openrlhfs_reward_server_can_be_used(monkeypatch, seed):
    class Actor(SwapRolloutActor):
        def __init__(self, address):
            self.executor, self._seed = SingleTurnAgentExecutor(address), seed

    async def answered(self, prompt, label, *_, num_samples, **__):
        """OpenRLHF's, after the engine: it asks the server about the response "four"."""
        (given,) = await self.executor._fetch_rewards_via_http(["four"], [prompt], [label])
        reward = {
            "reward": given["rewards"],
            **{name: given[name] for name in ("scores", "extra_logs")},
        }
        return [{**RESPONSE, "prompt": prompt, "label": label, **reward}] * num_samples

    monkeypatch.setattr(rollout_actor._StockRolloutActor, "generate_responses", answered)
    with ThreadingHTTPServer(("127.0.0.1", 0), RewardServer) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        actor = Actor(f"http://127.0.0.1:{server.server_port}/get_reward")
        sampling = SimpleNamespace(clone=SimpleNamespace)
        (rollout,) = asyncio.run(actor.generate_responses("2 + 2?", "4", sampling, 9, None))
        server.shutdown()
    assert (rollout.reward, rollout.record["scores"]) == (4.0, 4.0)
    assert rollout.record["extra_logs"] == {"dummy_scores": 4.0}


class Sampler:
    """In place of vLLM: samples these texts, one a turn, whatever it is asked."""

    def __init__(self, tokenizer, *texts):
        self._tokenizer, self._texts = tokenizer, iter(texts)

    async def generate(self, *_, **__):
        text = next(self._texts)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        output = SimpleNamespace(token_ids=ids, text=text, finish_reason="stop", logprobs=None)
        yield SimpleNamespace(outputs=[output])


def sampled(tokenizer, executor, *texts, seed="1"):
    """The rollout that the actor makes of these texts."""

    class Actor(SwapRolloutActor):
        def __init__(self):
            self.llm, self.executor, self._seed = Sampler(tokenizer, *texts), executor, seed

    generated = Actor().generate_responses(
        "What is 47 + 36?", "83", SamplingParams(max_tokens=40), 99, tokenizer
    )
    (rollout,) = asyncio.run(generated)
    return rollout


def agent(step):
    """An executor whose environment takes steps by this function of an action and the label."""

    class Environment(AgentInstanceBase):
        def __init__(self):
            pass

        async def step(self, state, **_):
            return step(state["action_text"], state["label"])

    return MultiTurnAgentExecutor(Environment)


def test_an_agent_of_one_turn_is_no_other_than_a_reward_function(tokenizer):
    """All that follows, scores and advantages included, is computed from the rollout and OpenRLHF's
    row of it.
    """

    def grade(queries, prompts, labels):
        score = float(queries[0].endswith(labels[0] + "}"))
        return {"rewards": torch.tensor(score), "scores": score, "extra_logs": {"mine": 2.0}}

    def step(action, label):
        return {**grade([action], [], [label]), "environment_feedback": "", "done": True}

    plain = SingleTurnAgentExecutor(None)
    plain.reward_func = grade
    plain.reward_endpoints = ["grade.py"]
    for text in ("ones: 7+6+0=13\n</think>\n\n\\boxed{83}", "\\boxed{84}"):
        expected, rollout = (
            sampled(tokenizer, executor, text) for executor in (plain, agent(step))
        )
        assert rollout == expected and rollout.record == expected.record
        assert (rollout.observations, rollout.turns) == ([], [rollout.response_ids])
        for context in (99, len(rollout.row_ids) - 1):  # which cuts it
            for name, value in vars(make_sample(expected, context)).items():
                ours = vars(make_sample(rollout, context))[name]
                if isinstance(value, (torch.Tensor, dict)):
                    torch.testing.assert_close(ours, value, rtol=0, atol=0)
                else:
                    assert ours == value, name


RESULT = {"rewards": torch.ones(1), "environment_feedback": "", "done": True}
FAILED, GAVE = "the agent of --train.agent_func_path failed with ", "--train.agent_func_path gave "


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (
            LookupError("no weather"),
            FAILED + "LookupError: no weather; the traceback is in train.log",
        ),
        (ValueError("two\nlines"), FAILED + "ValueError: two; the traceback"),
        (None, FAILED + "TypeError: 'NoneType' object is not subscriptable"),
        ({"done": True}, FAILED + "KeyError: 'rewards'"),
        (
            {**RESULT, "rewards": 1.0},
            FAILED + "AttributeError: 'float' object has no attribute 'item'",
        ),
        ({**RESULT, "rewards": torch.ones(2)}, FAILED + "RuntimeError: a Tensor with 2 elements"),
        (
            {**RESULT, "environment_feedback": 3},
            FAILED + "ValueError: text input must be of type `str`",
        ),
        (
            {**RESULT, "rewards": torch.tensor(math.nan)},
            GAVE + "nan as the reward of a response; it has to be one",
        ),
        ({**RESULT, "scores": "good"}, GAVE + "'good' as the score of a response"),
        ({**RESULT, "extra_logs": {"calls": "two"}}, GAVE + "'two' as calls of a response"),
        ({**RESULT, "extra_logs": {"calls": [1, 2]}}, GAVE + "[1, 2] as calls of a response"),
    ],
)
def test_an_environment_that_fails_or_returns_nonsense_is_one_line(tokenizer, result, message):
    def step(action, label):
        if isinstance(result, Exception):
            raise result
        return result

    with pytest.raises(DataError) as error:
        sampled(tokenizer, agent(step), "13")
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_python_sees_each_response_once_when_it_is_finished():
    """vLLM's front end makes an output of all tokens so far at each step of a request that does not
    say so.
    """
    sampled = []

    class Actor(SwapRolloutActor):
        def __init__(self):
            self._seed, self.executor = None, SingleTurnAgentExecutor(None)

    async def answered(self, prompt, label, sampling, *_, **__):
        sampled.append(sampling)
        return [{**RESPONSE, "reward": 1.0}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_actor._StockRolloutActor, "generate_responses", answered)
        asyncio.run(
            Actor().generate_responses(
                "2 + 2?", "4", given := SamplingParams(), 9, None, num_samples=2
            )
        )
    assert [one.output_kind for one in sampled] == [RequestOutputKind.FINAL_ONLY] * 2
    assert given.output_kind == RequestOutputKind.CUMULATIVE

    def count_outputs(sampling):
        outputs = 0
        processor = OutputProcessor(tokenizer=None, log_stats=False)
        sampling.detokenize = False
        given = {
            "request_id": "0",
            "external_req_id": "0",
            "prompt_token_ids": [1],
            "sampling_params": sampling,
        }
        none = ("mm_features", "pooling_params", "lora_request", "cache_salt", "data_parallel_rank")
        processor.add_request(
            EngineCoreRequest(**given, **dict.fromkeys(none), arrival_time=0.0), None
        )
        for token in range(9):
            reason = FinishReason.LENGTH if token == 8 else None
            step = EngineCoreOutput(request_id="0", new_token_ids=[token], finish_reason=reason)
            found = processor.process_outputs([step]).request_outputs
            outputs += len(found)
        assert found[0].outputs[0].token_ids == list(range(9))
        return outputs

    assert (count_outputs(sampled[0]), count_outputs(given)) == (1, 9)


def test_the_actor_ends_with_its_engine_and_not_before(monkeypatch):
    class Engine:
        looks = 0

        async def check_health(self):
            self.looks += 1
            if self.looks == 3:
                raise EngineDeadError

    class Actor(SwapRolloutActor):
        def __init__(self):
            self.llm = Engine()

    def end(status):
        raise InterruptedError  # in place of the end of the process

    monkeypatch.setattr(rollout_actor, "HEALTH_SECONDS", 0.01)
    monkeypatch.setattr(rollout_actor.os, "_exit", end)
    actor = Actor()
    with pytest.raises(InterruptedError):
        asyncio.run(asyncio.wait_for(actor.exit_with_engine(), 60))
    assert actor.llm.looks == 3
