"""What the trainer makes of engines that do not take new weights, and which evaluation is the best to it."""

import math
import threading
from types import SimpleNamespace

import pytest
import ray
from support.trainers import make_trainer, remote, strategy_of
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.files import read_rows
from openrlhf_swap.integration.driver import trainer
from openrlhf_swap.runs.metrics import EVALUATIONS, append_metrics

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
    arrived = []
    broadcast(False, weights=lambda: arrived.append("weights"), limit=60)
    assert arrived == ["weights"]


def test_an_engine_that_is_stuck_is_not_waited_for_for_ever(broadcast):
    done = threading.Event()
    with pytest.raises(RunError, match=r"did not take new weights within --swap\.generation_timeout 0\.2 "):
        broadcast(False, weights=done.wait, limit=0.2)
    done.set()


LOGS = {"eval_a/b_pass1": 0.5, "eval_c_pass1": 0.25, "eval_response_length_mean": 90.0}


@pytest.fixture
def keeper(monkeypatch, arguments, tmp_path, prompts_file):
    """A trainer with a `--ckpt.best_metric_key`, and the checkpoints that it saves."""

    def make(key, **changes):
        saved = []
        monkeypatch.setattr(ray, "get", lambda asked: asked)
        group = SimpleNamespace(async_run_method=lambda **asked: saved.append(asked) or [])
        strategy = strategy_of(arguments, tmp_path, prompts_file, **{"ckpt.best_metric_key": key, **changes})
        return make_trainer(strategy, group), saved

    return make


@pytest.mark.parametrize(
    ("key", "metric", "value"),
    [
        ("eval_a/b_pass1", "eval_a/b_pass1", 0.5),
        ("eval_response_length_mean", "eval_response_length_mean", 90.0),
        ("", "eval_a/b_pass1", 0.5),
    ],
)
def test_the_best_checkpoint_goes_by_the_metric_of_the_flag(keeper, key, metric, value):
    maker, saved = keeper(key)
    maker.save_best_checkpoint(LOGS, 4)
    (checkpoint,) = saved
    assert (checkpoint["tag"], checkpoint["metric_key"]) == ("best_global_step4", metric)
    assert checkpoint["client_states"]["best_eval_metric_value"] == value
    maker.save_best_checkpoint({**LOGS, metric: value - 0.1}, 8)
    assert len(saved) == 1


def test_a_metric_that_no_evaluation_measures_is_an_error(keeper):
    maker, saved = keeper("eval_default_pass1")
    with pytest.raises(ConfigError) as error:
        maker.save_best_checkpoint(LOGS, 4)
    known = "eval_a/b_pass1, eval_c_pass1, eval_response_length_mean"
    told = f"--ckpt.best_metric_key is 'eval_default_pass1', which no evaluation measures; use one of {known}"
    assert (str(error.value), saved) == (told, [])


def test_none_saves_no_best_checkpoint(keeper):
    maker, saved = keeper("none")
    maker.save_best_checkpoint(LOGS, 4)
    assert saved == []


@pytest.mark.parametrize(
    ("key", "metric", "best_before"),
    [
        ("", "eval_c_pass1", 0.2),
        ("eval_c_pass1", "eval_c_pass1", 0.2),
        ("eval_a/b_pass1", "eval_a/b_pass1", -math.inf),  # 0.2 was the other metric's
    ],
)
def test_after_a_resume_the_flag_wins_over_the_checkpoint(keeper, key, metric, best_before):
    maker, saved = keeper(key)
    states = {"best_eval_metric_key": "eval_c_pass1", "best_eval_metric_value": 0.2, "global_step": 2}
    maker.restore_best_checkpoint_state(states)
    assert maker.best_eval_metric_value == best_before
    maker.save_best_checkpoint(LOGS, 4)
    assert [checkpoint["metric_key"] for checkpoint in saved] == [metric]


@pytest.mark.parametrize(("step", "evaluated"), [(4, True), (8, False), (6, False), (0, False)])
def test_an_evaluation_that_was_interrupted_is_made_up_for(
    keeper, monkeypatch, tmp_path, prompts_file, step, evaluated
):
    """Of the step of the checkpoint, if its line is missing; before that the engines get the checkpoint's weights."""
    asked = []
    changes = {"eval.dataset": str(prompts_file), "eval.steps": 4, "eval.temperature": 0.5}
    maker, saved = keeper("", **changes, **{"eval.n_samples_per_prompt": 3})
    append_metrics(tmp_path, 8, {"eval_response_length_mean": 9}, EVALUATIONS)
    monkeypatch.setattr(maker, "broadcast_to_vllm", lambda: asked.append("weights"))
    monkeypatch.setattr(
        trainer._StockTrainer, "evaluate", lambda self, step, **sampling: asked.append((step, sampling)) or LOGS
    )
    maker.generate_kwargs = {"temperature": 1.0, "n_samples_per_prompt": 8, "max_len": 400}
    maker.restore_best_checkpoint_state({"global_step": step})
    sampling = {"temperature": 0.5, "n_samples_per_prompt": 3, "max_len": 400}
    assert asked == (["weights", (step, sampling)] if evaluated else [])
    assert [checkpoint["tag"] for checkpoint in saved] == [f"best_global_step{step}"] * evaluated
    steps = [row["step"] for row in read_rows(tmp_path / EVALUATIONS)]
    assert steps == [8, *[step] * evaluated]
