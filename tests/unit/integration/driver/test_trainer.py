"""The trainers: stuck engines, the best checkpoint, what W&B gets, and batches on their way between
two actors.
"""

import json
import math
import pickle
import threading
from types import SimpleNamespace

import pytest
import ray
import wandb
from support.trainers import (
    make_generate_actor,
    make_rollout_batch,
    make_trainer,
    make_training_actor,
    remote,
    strategy_of,
)
from vllm.v1.engine.exceptions import EngineDeadError

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.errors import ConfigError, RunError
from openrlhf_swap.files import read_rows
from openrlhf_swap.integration.driver import trainer
from openrlhf_swap.integration.generation import sampling
from openrlhf_swap.objectives.registry import build
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.metrics import EVALUATIONS, append_metrics

BROKEN = ray.exceptions.RayTaskError(
    "broadcast_to_vllm", "Connection closed by peer", RuntimeError()
)


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
        engines = [
            SimpleNamespace(check_health=check, configure_reward=takes_mark) for check in health
        ]
        strategy = strategy_of(arguments, tmp_path, prompts_file, run={"generation_timeout": limit})
        make_trainer(strategy, group, engines).broadcast_to_vllm()

    return run


@pytest.mark.parametrize(
    ("ended", "error"), [(True, EngineDeadError), (False, ray.exceptions.RayTaskError)]
)
def test_an_engine_that_ended_is_the_error_and_otherwise_the_connection(broadcast, ended, error):
    with pytest.raises(error):
        broadcast(False, ended)


def test_weights_that_arrive_are_no_error(broadcast):
    arrived = []
    broadcast(False, weights=lambda: arrived.append("weights"), limit=60)
    assert arrived == ["weights"]


def test_an_engine_that_is_stuck_is_not_waited_for_for_ever(broadcast):
    done = threading.Event()
    with pytest.raises(
        RunError, match=r"did not take new weights within --swap\.generation_timeout 0\.2 "
    ):
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
        strategy = strategy_of(
            arguments, tmp_path, prompts_file, **{"ckpt.best_metric_key": key, **changes}
        )
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


def test_a_metric_that_no_evaluation_measures_is_an_error_and_none_saves_no_best_checkpoint(keeper):
    maker, saved = keeper("eval_default_pass1")
    with pytest.raises(ConfigError) as error:
        maker.save_best_checkpoint(LOGS, 4)
    known = "eval_a/b_pass1, eval_c_pass1, eval_response_length_mean"
    told = f"--ckpt.best_metric_key is 'eval_default_pass1', which no evaluation measures; use one of {known}"
    assert (str(error.value), saved) == (told, [])
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
    states = {
        "best_eval_metric_key": "eval_c_pass1",
        "best_eval_metric_value": 0.2,
        "global_step": 2,
    }
    maker.restore_best_checkpoint_state(states)
    assert maker.best_eval_metric_value == best_before
    maker.save_best_checkpoint(LOGS, 4)
    assert [checkpoint["metric_key"] for checkpoint in saved] == [metric]


@pytest.mark.parametrize(("step", "evaluated"), [(4, True), (8, False), (6, False), (0, False)])
def test_an_evaluation_that_was_interrupted_is_made_up_for(
    keeper, monkeypatch, tmp_path, prompts_file, step, evaluated
):
    """Of the step of the checkpoint, if its line is missing; before that the engines get the
    checkpoint's weights.
    """
    asked = []
    changes = {"eval.dataset": str(prompts_file), "eval.steps": 4, "eval.temperature": 0.5}
    maker, saved = keeper("", **changes, **{"eval.n_samples_per_prompt": 3})
    append_metrics(tmp_path, 8, {"eval_response_length_mean": 9}, EVALUATIONS)
    monkeypatch.setattr(maker, "broadcast_to_vllm", lambda: asked.append("weights"))
    monkeypatch.setattr(
        trainer._StockTrainer,
        "evaluate",
        lambda self, step, **sampling: asked.append((step, sampling)) or LOGS,
    )
    maker.generate_kwargs = {"temperature": 1.0, "n_samples_per_prompt": 8, "max_len": 400}
    maker.restore_best_checkpoint_state({"global_step": step})
    sampling = {"temperature": 0.5, "n_samples_per_prompt": 3, "max_len": 400}
    assert asked == (["weights", (step, sampling)] if evaluated else [])
    assert [checkpoint["tag"] for checkpoint in saved] == [f"best_global_step{step}"] * evaluated
    steps = [row["step"] for row in read_rows(tmp_path / EVALUATIONS)]
    assert steps == [8, *[step] * evaluated]


@pytest.fixture
def args(tmp_path):
    """Arguments of a run whose configuration is written."""
    record = {"flags": {"actor.adam.lr": 1e-6}, "run_id": "0123456789abcdef"}
    (tmp_path / CONFIGURATION).write_text(json.dumps(record))
    wandb = SimpleNamespace(key="secret", org=None, project="p", group=None, run_name="a_run")
    return SimpleNamespace(
        logger=SimpleNamespace(wandb=wandb), swap_run=RunConfig(output_dir=str(tmp_path))
    )


@pytest.fixture
def offline(monkeypatch):
    """W&B writes into a folder only; its variables are put back."""
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_API_KEY", "WANDB_DIR", "WANDB_RESUME", "WANDB_RUN_ID"):
        monkeypatch.setenv(name, "")  # so that it is removed at the end
        monkeypatch.delenv(name)
    # Imports W&B's launcher of jobs, which takes 20 s beside our modules.
    monkeypatch.setattr("wandb.sdk.wandb_run.Run._detect_and_apply_job_inputs", lambda _: None)
    yield
    wandb.teardown()  # it reads them once a process


def test_wandb_resumes_a_run_by_its_id(args, tmp_path, offline):
    for step in (1, 2):  # a run, and its resumption
        log = trainer.SwapWandb(args)
        assert (log.handle.run.id, log.handle.run.name) == ("0123456789abcdef", "a_run")
        assert log.handle.run.config["flags"]["actor.adam.lr"] == 1e-6
        log.log_train(step, {"rollout/reward_mean": 0.5, "generated_samples": ["a response", 1.0]})
        assert log.handle.run.summary["train/global_step"] == step
        log.close()
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert runs and all("-0123456789abcdef" in folder.name for folder in runs)
    assert not any(
        b"secret" in file.read_bytes()
        for folder in runs
        for file in folder.rglob("*")
        if file.is_file()
    )


def test_wandb_stores_a_step_without_the_steps_before_it(args, tmp_path, offline):
    log = trainer.SwapWandb(args)
    for step in range(3):
        log.log_train(step, {"generated_samples": [f"response {step}", 1.0]})
    log.close()
    files = (tmp_path / "wandb").glob("offline-run-*/files/**/*.table.json")
    rows = sorted(row for file in files for row in json.loads(file.read_text())["data"])
    assert rows == [[step, f"response {step}", 1.0] for step in range(3)]


def test_a_batch_keeps_what_it_was_drawn_under_on_its_way():
    sent = pickle.loads(pickle.dumps(make_rollout_batch(["sample"], {"stage": 2}, 7)))
    assert (sent, sent.objective_state, sent.updates) == (["sample"], {"stage": 2}, 7)
    assert not trainer.RolloutBatch()


@pytest.fixture
def objective():
    """Stages of two steps."""
    return build(
        SwapConfig(objective="thinkprune", options={"limits": "300,200,100", "stage_steps": "2"})
    )


def make_generator(monkeypatch, objective, updates):
    """Draws a batch a call by the real way, from an engine that answers with the limit that it was
    given.
    """
    monkeypatch.setattr(trainer, "weight_updates", lambda _: updates.pop(0))
    stock = sampling.SamplesGenerator
    drawn = lambda self, **_: ([objective.sampling("p", 1, 320)[0].max_new_tokens], None, 1, False)  # noqa: E731
    monkeypatch.setattr(stock, "generate_samples", drawn)
    strategy = SimpleNamespace(
        args=SimpleNamespace(train=SimpleNamespace(full_determinism_enable=False))
    )
    return trainer._BatchGenerator(stock(strategy, None, None, None, []), objective, None)


def test_stages_follow_the_batches_drawn_and_the_trainer_takes_the_state_of_its_batch(
    monkeypatch, objective, arguments, tmp_path
):
    generator = make_generator(monkeypatch, objective, [0, 0, 1, 2])
    batches = [generator.generate_samples()[0] for _ in range(4)]
    assert [list(batch) for batch in batches] == [[300], [300], [200], [200]]
    assert [batch.objective_state["stage"] for batch in batches] == [0, 0, 1, 1]

    # The trainer is three updates on when it gets the first batch of the second stage, and five at
    # the last one.
    seen, its_own = [], build(objective.config)
    monkeypatch.setattr(trainer, "build", lambda _: its_own)
    actor = make_training_actor(strategy_of(arguments, tmp_path))
    step = lambda self, samples, step: seen.append(its_own.limit) or ({}, step + 1)  # noqa: E731
    monkeypatch.setattr(trainer.TrainerMixin, "train_step", step)
    monkeypatch.setattr(trainer, "weight_updates", lambda _: 3)
    assert actor.train_step(batches[2], 2) == ({"swap/batch_age": 2}, 3)
    assert actor.train_step(batches[1], 3) == ({"swap/batch_age": 3}, 4)
    assert seen == [200, 300]


def test_a_generator_goes_on_after_the_last_batch_of_a_checkpoint(
    monkeypatch, objective, arguments, tmp_path, prompts_file
):
    monkeypatch.setattr(trainer, "build", lambda _: objective)
    strategy = strategy_of(arguments, tmp_path, prompts_file)
    killed, resumed = make_generate_actor(strategy), make_generate_actor(strategy)
    drawing = iter(killed.prompts_dataloader)
    seen = [next(drawing) for _ in range(3)]
    position = killed.prompts_dataloader.state_dict()
    resumed.load_state_dict(
        {"data_loader_state_dict": position, "global_step": 4, "objective_state": {"stage": 1}}
    )
    assert (objective.step, objective.limit) == (4, 200)
    following = list(resumed.prompts_dataloader)
    assert following == list(drawing) and len(seen) + len(following) == 64
    generator = make_generator(monkeypatch, objective, [1])
    assert generator.generate_samples()[0] == [100]


def test_the_best_checkpoint_bears_the_step_of_the_weights_that_it_holds(
    monkeypatch, arguments, tmp_path, capsys
):
    saved = []
    monkeypatch.setattr(ray, "get", lambda asked: asked)
    group = SimpleNamespace(async_run_method=lambda **asked: saved.append(asked) or [])
    actor = make_training_actor(strategy_of(arguments, tmp_path), group)
    # Two updates were made while the weights of step 4 were evaluated, and three in the worse
    # evaluation of step 8.
    for evaluated, held, score in ((4, 6, 0.5), (8, 11, 0.4)):
        actor.save_best_checkpoint({"eval_default_pass1": score}, evaluated, {"global_step": held})
    (checkpoint,) = saved
    assert (checkpoint["tag"], checkpoint["client_states"]["global_step"]) == (
        "best_global_step6",
        6,
    )
    told = "[swap] best checkpoint: the weights after step 6; its score was measured after step 4\n"
    assert [line for line in capsys.readouterr().out.splitlines(True) if "best" in line] == [told]
    assert [row["step"] for row in read_rows(tmp_path / EVALUATIONS)] == [4, 8]
