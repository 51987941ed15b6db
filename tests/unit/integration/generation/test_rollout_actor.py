"""What the rollout actor tells the reward function, and what it does when its engine ends."""

import asyncio
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace

import pytest

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.generation.response import read_response
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
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor

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
            read_response({**RESPONSE, "reward": result["rewards"], "extra_logs": result["extra_logs"]})
        assert str(error.value) == (
            f"the reward function of --reward.remote_url gave no reward for a response: {reason}"
        )


class RewardServer(BaseHTTPRequestHandler):
    """Answers a query as `openrlhf.cli.serve_rm` does."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        scores = [float(len(query)) for query in asked["query"]]
        body = json.dumps({"rewards": scores, "scores": scores, "extra_logs": {"dummy_scores": scores}}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("seed", [None, "1"])
def test_openrlhfs_reward_server_can_be_used(monkeypatch, seed):
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_swap.integration.generation import rollout_actor

    class Actor(rollout_actor.SwapRolloutActor):
        def __init__(self, address):
            self.executor, self._seed = SingleTurnAgentExecutor(address), seed

    async def answered(self, prompt, label, *_, num_samples, **__):
        """OpenRLHF's, after the engine: it asks the server about the response "four"."""
        (given,) = await self.executor._fetch_rewards_via_http(["four"], [prompt], [label])
        reward = {"reward": given["rewards"], **{name: given[name] for name in ("scores", "extra_logs")}}
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


def test_python_sees_each_response_once_when_it_is_finished():
    """vLLM's front end makes an output of all tokens so far at each step of a request that does not say so."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest, FinishReason
    from vllm.v1.engine.output_processor import OutputProcessor

    from openrlhf_swap.integration.generation import rollout_actor

    sampled = []

    class Actor(rollout_actor.SwapRolloutActor):
        def __init__(self):
            self._seed = None

    async def answered(self, prompt, label, sampling, *_, **__):
        sampled.append(sampling)
        return [{**RESPONSE, "reward": 1.0}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rollout_actor._StockRolloutActor, "generate_responses", answered)
        asyncio.run(Actor().generate_responses("2 + 2?", "4", given := SamplingParams(), 9, None, num_samples=2))
    assert [one.output_kind for one in sampled] == [RequestOutputKind.FINAL_ONLY] * 2
    assert given.output_kind == RequestOutputKind.CUMULATIVE

    def count_outputs(sampling):
        outputs = 0
        processor = OutputProcessor(tokenizer=None, log_stats=False)
        sampling.detokenize = False
        request = EngineCoreRequest(
            request_id="0",
            external_req_id="0",
            prompt_token_ids=[1],
            mm_features=None,
            sampling_params=sampling,
            pooling_params=None,
            arrival_time=0.0,
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        processor.add_request(request, None)
        for token in range(9):
            reason = FinishReason.LENGTH if token == 8 else None
            step = EngineCoreOutput(request_id="0", new_token_ids=[token], finish_reason=reason)
            found = processor.process_outputs([step]).request_outputs
            outputs += len(found)
        assert found[0].outputs[0].token_ids == list(range(9))
        return outputs

    assert (count_outputs(sampled[0]), count_outputs(given)) == (1, 9)


class EndedError(Exception):
    """In place of the end of the process."""


def test_the_actor_ends_with_its_engine_and_not_before(monkeypatch):
    from vllm.v1.engine.exceptions import EngineDeadError

    from openrlhf_swap.integration.generation import rollout_actor

    class Engine:
        looks = 0

        async def check_health(self):
            self.looks += 1
            if self.looks == 3:
                raise EngineDeadError

    class Actor(rollout_actor.SwapRolloutActor):
        def __init__(self):
            self.llm = Engine()

    def end(status):
        raise EndedError

    monkeypatch.setattr(rollout_actor, "HEALTH_SECONDS", 0.01)
    monkeypatch.setattr(rollout_actor.os, "_exit", end)
    actor = Actor()
    with pytest.raises(EndedError):
        asyncio.run(asyncio.wait_for(actor.exit_with_engine(), 60))
    assert actor.llm.looks == 3
