"""Whole training runs that end early, and the state of objectives; test_faults.py has a run from end to end."""

import json
import os
import re
import shutil
import subprocess
import time

import pytest
from safetensors.torch import load_file, save_file
from support.paths import POLICY
from support.running import SMALL_STEPS, run_training, start_training, training
from transformers import AutoTokenizer

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow


def test_a_run_with_wrong_labels_stops_with_the_reason(tmp_path, prompts_file):
    rows = [json.loads(line) for line in prompts_file.read_text().splitlines()]
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text("".join(json.dumps({**row, "answer": "1"}) + "\n" for row in rows))
    result = start_training(tmp_path / "run", wrong, *SMALL_STEPS, "--swap.self_test_steps", "1")
    assert result.returncode == 2
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert line.startswith(
        "error: no correct rollout got a non-zero process term in the first 1 steps: no rollout was"
    )
    assert list(read_rows(tmp_path / "run" / "rollouts" / "step_000001.jsonl"))  # where it says to look


def test_a_run_whose_scores_are_not_finite_stops_with_the_reason(tmp_path, prompts_file):
    """Rollouts and their log-probabilities are in order, but the answer template holds a letter without a meaning."""
    broken = tmp_path / "broken"
    shutil.copytree(POLICY, broken)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    weights = load_file(broken / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][tokenizer.convert_tokens_to_ids("F")] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))

    flags = [*SMALL_STEPS, "--actor.model_name_or_path", str(broken), "--swap.close_template", r"</think>\n\nF\boxed{"]
    result = start_training(tmp_path / "run", prompts_file, *flags, "--swap.max_skipped_steps", "2")
    assert result.returncode == 2
    reason = r"response \d+ of group \d+: answer_logprobs\[0\] is nan; a log-probability must be finite"
    assert re.search(rf"warning: step 1 was skipped, because {reason}\n", result.stdout), result.stdout[-3000:]
    (line,) = [line for line in result.stderr.splitlines() if line.startswith("error:")]
    assert re.match(rf"error: 2 steps in a row were skipped, the last one because {reason}: the policy is no", line)
    (metrics,) = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert metrics["step"] == metrics["swap/skipped_steps"] == 1


# Objectives that keep state from step to step: settings, flags of the run, and the metric that shows its memory.
TWICE = ["--data.max_samples", "32", "--train.num_episodes", "2"]  # every problem comes back
REMEMBER = {
    "laser_d": (
        # The monitoring set is sampled before step 1 only: without the saved state there would be no target any more.
        {"shortest": "40", "longest": "320", "grid": "8", "monitor_prompts": "16", "monitor_every": "100"},
        [],
        "swap/laser_d_target_",
    ),
    "hapo": ({}, TWICE, "swap/hapo_known_problems"),
    "a_dlp": ({"target": "0.5"}, [], "swap/a_dlp_price"),
    "short_rl": ({"tolerance": "4"}, [], "swap/short_rl_best_accuracy"),
    "lapo": ({"first_stage_steps": "2"}, TWICE, "swap/lapo_known_problems"),
    "length_critic": ({}, [], "swap/critic_r2"),
}


@pytest.mark.skipif("TEST_SLOW" not in os.environ, reason="three starts each, two to four minutes: TEST_SLOW=1")
@pytest.mark.parametrize("objective", REMEMBER)
def test_an_objectives_state_survives_kill_9(objective, tmp_path, prompts_file):
    """Killed after step 2 and restarted, a run has the same numbers in every step as an undisturbed one."""
    settings, flags, memory = REMEMBER[objective]
    flags = [*flags, "--swap.objective", objective, "--train.full_determinism_enable"]
    flags += ["--ckpt.save_steps", "1", "--ckpt.load_enable"]
    for name, value in settings.items():
        flags += [f"--swap.{objective}.{name}", value]
    (tmp_path / "calm").mkdir()
    calm = run_training(tmp_path / "calm" / "run", prompts_file, *flags)

    output = tmp_path / "run"
    with open(tmp_path / "log", "w") as log:
        process = subprocess.Popen(**training(output, prompts_file, *flags), stdout=log, stderr=log)
        seal = output / "checkpoints" / "_actor" / "global_step2"
        while process.poll() is None and not seal.exists():
            time.sleep(0.1)
        process.kill()
        process.wait()
    result = start_training(output, prompts_file, *flags)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert int(re.search(r"resuming from checkpoint global_step(\d)", result.stdout)[1]) in (2, 3)
    rows = list(read_rows(output / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [row["step"] for row in calm] == [1, 2, 3, 4]
    for ours, theirs in zip(rows, calm, strict=True):
        numbers = [name for name in theirs if not name.startswith(("timing/", "memory/"))]
        assert {name: ours[name] for name in numbers} == {name: theirs[name] for name in numbers}
    remembered = {name: value for name, value in calm[-1].items() if name.startswith(memory)}
    assert any(remembered.values())
    print(objective, remembered)
