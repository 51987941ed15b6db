"""What the trainer makes of engines that do not take new weights."""

import math
import threading
from types import SimpleNamespace

import pytest
import ray
from support.trainers import make_trainer, remote, strategy_of
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import GenerationError
from openrlhf_swap.integration.driver import trainer

BROKEN = ray.exceptions.RayTaskError("broadcast_to_vllm", "Connection closed by peer", RuntimeError())


def broken():
    raise BROKEN


@pytest.fixture
def broadcast(monkeypatch, arguments, tmp_path, prompts_file):
    """A trainer sends weights to engines of which some have ended."""

    def run(*ended, weights=broken, limit=math.inf):
        def get(asked):
            if asked == "weights":
                weights()
            elif any(asked):
                raise EngineDeadError
            return asked

        monkeypatch.setattr(ray, "get", get)
        monkeypatch.setattr(trainer, "NOTICE_SECONDS", 0)
        group = SimpleNamespace(async_run_method=lambda method_name: "weights")
        health = [remote(lambda has_ended=has_ended: has_ended) for has_ended in ended]
        takes_mark = remote(lambda **settings: None)
        engines = [SimpleNamespace(check_health=check, configure_reward=takes_mark) for check in health]
        strategy = strategy_of(arguments, tmp_path, prompts_file, run={"generation_timeout": limit})
        make_trainer(strategy, group, engines).broadcast_to_vllm()

    return run


def test_an_engine_that_ended_is_the_error(broadcast):
    with pytest.raises(EngineDeadError):
        broadcast(False, True)


def test_otherwise_the_connection_is(broadcast):
    with pytest.raises(ray.exceptions.RayTaskError):
        broadcast(False, False)


def test_weights_that_arrive_are_no_error(broadcast):
    broadcast(False, weights=lambda: None, limit=60)


def test_an_engine_that_is_stuck_is_not_waited_for_for_ever(broadcast):
    done = threading.Event()
    with pytest.raises(GenerationError, match=r"did not take new weights within --swap\.generation_timeout 0\.2 "):
        broadcast(False, weights=done.wait, limit=0.2)
    done.set()
