"""Whole training runs on the command line, as a user starts them."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import POLICY, ROOT
from safetensors.torch import load_file

pytestmark = pytest.mark.slow


def training(output: Path, prompts: Path, *extra: str) -> dict:
    """Command, environment and folder of a training run of four steps."""
    environment = {
        **os.environ,
        "MODEL": str(POLICY),
        "PROMPTS": str(prompts),
        "OUTPUT": str(output),
        "STEPS": "4",
        "LEARNING_RATE": "1e-3",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    command = ["bash", str(ROOT / "examples" / "addition" / "train_swap.sh"), *extra]
    return {"args": command, "env": environment, "cwd": output.parent}


def start_training(output: Path, prompts: Path, *extra: str) -> subprocess.CompletedProcess:
    """Run it to its end."""
    return subprocess.run(**training(output, prompts, *extra), capture_output=True, text=True, timeout=1800)


def run_training(output: Path, prompts: Path, *extra: str) -> list[dict]:
    """A run that must succeed; returns its lines of metrics."""
    result = start_training(output, prompts, *extra)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_training_end_to_end_and_resume(tmp_path, prompts_file):
    output = tmp_path / "run"
    flags = ["--ckpt.save_steps", "2", "--swap.rollouts_every", "2", "--logger.tensorboard_dir", str(tmp_path / "tb")]
    # With this correction OpenRLHF also compares vLLM's log-probabilities with the trainer's, as `vllm_kl`.
    flags += ["--algo.advantage.is_correction_level", "token"]
    metrics = run_training(output, prompts_file, *flags)
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    for line in metrics:
        assert line["swap/adv_process_absmean"] > 0
        assert 0 <= line["swap/accuracy"] <= 1
        assert line["timing/generation"] > 0
        # The rollouts of steps 2 to 4 come from weights that were updated and synchronised: vLLM agrees with them.
        assert abs(line["vllm_kl"]) < 5e-3
    trained = load_file(output / "policy" / "model.safetensors")
    base = load_file(POLICY / "model.safetensors")
    moved = max((trained[name].float() - base[name].float()).abs().max().item() for name in base)
    assert moved > 1e-3  # four steps of 1e-3: had vLLM kept the old weights, vllm_kl would have shown it
    assert {path.name for path in (output / "rollouts").iterdir()} == {"step_000002.jsonl", "step_000004.jsonl"}
    assert list((tmp_path / "tb").rglob("events.out.tfevents.*"))
    assert json.loads((output / "swap_config.json").read_text())["swap"]["step_tokens"] == 8

    # Lose the last checkpoint, resume: training goes on from step 2, with the prompts that come next.
    actor = output / "checkpoints" / "_actor"
    shutil.rmtree(actor / "global_step4")
    (actor / "latest").write_text("global_step2")
    resumed = run_training(output, prompts_file, *flags, "--ckpt.load_enable")
    assert [line["step"] for line in resumed] == [1, 2, 3, 4, 3, 4]


def test_a_run_with_wrong_labels_stops_with_the_reason(tmp_path, prompts_file):
    rows = [json.loads(line) for line in prompts_file.read_text().splitlines()]
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps({**row, "answer": "1"}) + "\n" for row in rows))
    result = start_training(tmp_path / "run", wrong, "--swap.self_test_steps", "1")
    assert result.returncode == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith(
        "error: no correct rollout got a non-zero process term in the first 1 steps: no rollout was"
    )


def test_an_objectives_state_survives_kill_9(tmp_path, prompts_file):
    output = tmp_path / "run"
    flags = ["--swap.objective", "laser_d", "--swap.laser_d.shortest", "40", "--swap.laser_d.longest", "320"]
    flags += [
        "--swap.laser_d.grid",
        "8",
        "--swap.laser_d.monitor_prompts",
        "16",
        "--swap.laser_d.monitor_every",
        "100",
    ]
    flags += ["--ckpt.save_steps", "1", "--ckpt.load_enable"]
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(**training(output, prompts_file, *flags), stdout=log, stderr=log)
        latest = output / "checkpoints" / "_actor" / "latest"
        while process.poll() is None and not (latest.exists() and latest.read_text() >= "global_step2"):
            time.sleep(0.1)
        process.kill()
        process.wait()
    saved = int(latest.read_text().removeprefix("global_step"))
    before = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    targets = {name: value for name, value in before[0].items() if name.startswith("swap/laser_d_target")}
    assert targets, (tmp_path / "log").read_text()[-3000:]

    # The monitoring set is sampled before step 1 only: without the saved state there would be no target any more.
    resumed = run_training(output, prompts_file, *flags)[len(before) :]
    assert [line["step"] for line in resumed] == list(range(saved + 1, 5))
    for line in resumed:
        assert {name: line[name] for name in targets} == targets

    # Another objective does not take this state over.
    result = start_training(output, prompts_file, "--swap.objective", "grpo", "--ckpt.load_enable")
    assert result.returncode == 2
    assert "error: --swap.objective is grpo, but the checkpoint in" in result.stderr
