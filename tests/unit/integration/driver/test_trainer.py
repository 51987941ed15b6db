"""What the trainer makes of engines that do not take new weights."""

import math
import threading
from types import SimpleNamespace

import pytest
import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import GenerationError
from openrlhf_swap.integration.driver import trainer

BROKEN = ray.exceptions.RayTaskError("broadcast_to_vllm", "Connection closed by peer", RuntimeError())


def broken():
    raise BROKEN


@pytest.fixture
def broadcast(monkeypatch):
    """Weights on their way to engines of which some have ended."""

    def run(*ended, weights=broken, limit=math.inf):
        def get(asked):
            if asked == "weights":
                weights()
            elif any(asked):
                raise EngineDeadError

        monkeypatch.setattr(ray, "get", get)
        monkeypatch.setattr(trainer, "NOTICE_SECONDS", 0)
        training = trainer.SwapTrainer.__new__(trainer.SwapTrainer)
        training._run_config = SimpleNamespace(generation_timeout=limit)
        training.args = SimpleNamespace(vllm=SimpleNamespace(enable_sleep=False))
        training.actor_model_group = SimpleNamespace(async_run_method=lambda method_name: "weights")
        health = [SimpleNamespace(remote=lambda has_ended=has_ended: has_ended) for has_ended in ended]
        training.vllm_engines = [SimpleNamespace(check_health=check) for check in health]
        training.broadcast_to_vllm()

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
