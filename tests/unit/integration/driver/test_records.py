"""What trackers get of a run; the files and the console are seen in the loop's tests."""

import json
from importlib import import_module
from types import SimpleNamespace

import pytest
import wandb

from openrlhf_swap.config import RunConfig, SwapConfig
from openrlhf_swap.integration.driver.records import Records, SwapWandb
from openrlhf_swap.runs.checkpoints import CONFIGURATION
from openrlhf_swap.runs.guards import Guards


@pytest.fixture
def args(tmp_path):
    """Arguments of a run whose configuration is written."""
    record = {"flags": {"actor.adam.lr": 1e-6}, "run_id": "0123456789abcdef"}
    (tmp_path / CONFIGURATION).write_text(json.dumps(record))
    tracker = SimpleNamespace(key="secret", org=None, project="p", group=None, run_name="a_run")
    return SimpleNamespace(
        logger=SimpleNamespace(wandb=tracker), swap_run=RunConfig(output_dir=str(tmp_path))
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


def test_wandb_resumes_a_run_by_its_id_and_keeps_no_key(args, tmp_path, offline):
    for step in (1, 2):  # a run, and its resumption
        log = SwapWandb(args)
        assert log.handle.run.id == "0123456789abcdef"
        assert log.handle.run.name == "a_run"
        assert log.handle.run.config["flags"]["actor.adam.lr"] == 1e-6
        log.log_train(step, {"generated_samples": [f"response {step}", 1.0], "loss": 0.5})
        assert log.handle.run.summary["train/global_step"] == step
        log.close()
    folders = list((tmp_path / "wandb").glob("offline-run-*"))
    assert folders
    assert all("-0123456789abcdef" in folder.name for folder in folders)
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file()]
    assert not any(b"secret" in file.read_bytes() for file in files)
    # Each step has a table of its own.
    tables = []
    for file in files:
        if file.name.endswith(".table.json"):
            tables += json.loads(file.read_text())["data"]
    assert sorted(tables) == [[1, "response 1", 1.0], [2, "response 2", 1.0]]


def test_a_tracker_of_ones_own_gets_each_step_and_evaluation(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("seen = []\ndef log(*words): seen.append(words)\n")
    monkeypatch.syspath_prepend(tmp_path)
    logger = SimpleNamespace(wandb=SimpleNamespace(key=None), tensorboard_dir=None, logging_steps=1)
    run = RunConfig(output_dir=str(tmp_path), tracker="mine:log")
    guards = Guards(SwapConfig(), None, 0)
    records = Records(SimpleNamespace(logger=logger, swap_run=run), guards, None)
    records.write_step(3, {"reward": 0.5})
    records.write_evaluation(3, {"eval_own_pass1": 0.75})
    (step, metrics), evaluation = import_module("mine").seen
    assert step == 3
    assert metrics["reward"] == 0.5
    assert evaluation == (3, {"eval_own_pass1": 0.75})
