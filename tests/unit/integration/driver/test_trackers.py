"""What the trackers get, and that a resumed run is one run to them."""

import json
from types import SimpleNamespace

import pytest
import wandb
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.integration.driver import trackers
from openrlhf_swap.runs.checkpoints import CONFIGURATION


@pytest.fixture
def args(tmp_path):
    """Arguments of a run whose configuration is written."""
    record = {"swap": {}, "command": "python -m openrlhf_swap.train", "run_id": "0123456789abcdef"}
    (tmp_path / CONFIGURATION).write_text(json.dumps(record))
    wandb = SimpleNamespace(key="secret", org=None, project="p", group=None, run_name="a_run")
    return SimpleNamespace(
        actor=SimpleNamespace(adam=SimpleNamespace(lr=1e-6)),
        logger=SimpleNamespace(tensorboard_dir=str(tmp_path / "tensorboard"), wandb=wandb),
        swap=SwapConfig(),
        swap_run=RunConfig(output_dir=str(tmp_path)),
    )


def test_hyper_parameters_by_the_names_of_their_flags(args):
    found = trackers.hyper_parameters(args)
    assert (found["actor.adam.lr"], found["swap.process_weight"], found["swap.scoring"]) == (
        1e-6,
        0.3,
        "shared_prefix",
    )
    assert found["command"] == "python -m openrlhf_swap.train"
    assert "secret" not in json.dumps(found)


def test_tensorboard_gets_the_settings_and_forgets_what_is_repeated(args, tmp_path):
    log = trackers.SwapTensorboard(args)
    for step in (1, 2, 3):
        log.log_train(step, {"rollout/reward_mean": float(step), "generated_samples": ["a response", 1.0]})
    log.close()
    again = trackers.SwapTensorboard(args)
    again.resume_after(2)  # the last checkpoint was of step 2
    again.log_train(3, {"rollout/reward_mean": 30.0})
    again.log_eval(3, {"eval_math_pass1": 0.5})
    again.close()
    events = EventAccumulator(str(tmp_path / "tensorboard" / "a_run")).Reload()
    means = [(event.step, event.value) for event in events.Scalars("train/rollout/reward_mean")]
    assert means == [(1, 1.0), (2, 2.0), (3, 30.0)]
    assert events.Tags()["scalars"] == ["train/rollout/reward_mean", "eval/eval_math_pass1"]
    assert {"train/generated_samples/text_summary", "settings/text_summary"} <= set(events.Tags()["tensors"])


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
        log = trackers.SwapWandb(args)
        assert (log.handle.run.id, log.handle.run.name) == ("0123456789abcdef", "a_run")
        assert log.handle.run.config["actor.adam.lr"] == 1e-6
        log.log_train(step, {"rollout/reward_mean": 0.5, "generated_samples": ["a response", 1.0]})
        assert log.handle.run.summary["train/global_step"] == step
        log.close()
    runs = list((tmp_path / "wandb").glob("offline-run-*"))
    assert runs and all("-0123456789abcdef" in folder.name for folder in runs)
    assert not any(b"secret" in file.read_bytes() for folder in runs for file in folder.rglob("*") if file.is_file())


def test_wandb_stores_a_step_without_the_steps_before_it(args, tmp_path, offline):
    log = trackers.SwapWandb(args)
    for step in range(3):
        log.log_train(step, {"generated_samples": [f"response {step}", 1.0]})
    log.close()
    files = (tmp_path / "wandb").glob("offline-run-*/files/**/*.table.json")
    rows = sorted(row for file in files for row in json.loads(file.read_text())["data"])
    assert rows == [[step, f"response {step}", 1.0] for step in range(3)]
