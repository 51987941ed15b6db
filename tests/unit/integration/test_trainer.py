"""What the trainer makes of a connection that breaks."""

from types import SimpleNamespace

import pytest
import ray
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.integration import trainer

BROKEN = ray.exceptions.RayTaskError("broadcast_to_vllm", "Connection closed by peer", RuntimeError())


@pytest.fixture
def broadcast(monkeypatch):
    """A broadcast whose connection breaks, with engines of which some have ended."""

    def run(*ended):
        def get(asked):
            if asked == "weights":
                raise BROKEN
            if any(asked):
                raise EngineDeadError

        monkeypatch.setattr(ray, "get", get)
        monkeypatch.setattr(trainer, "NOTICE_SECONDS", 0)
        training = trainer.SwapTraining.__new__(trainer.SwapTraining)
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
