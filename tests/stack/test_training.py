"""Whole training runs that end early, and the state of objectives; test_faults.py has a run from
end to end.
"""

import json
import os
import re
import shutil
import signal

import pytest
from safetensors.torch import load_file, save_file
from support.disturbing import Run, errors
from support.paths import POLICY
from support.running import SMALL_STEPS, objective_flags, of_the_run, run_training, start_training
from transformers import AutoTokenizer

from openrlhf_swap.files import read_rows, write_rows

pytestmark = pytest.mark.slow
on_request = pytest.mark.skipif(
    "TEST_SLOW" not in os.environ, reason="up to four minutes: TEST_SLOW=1"
)


@pytest.mark.parametrize("flags", [[], pytest.param(["--train.async_enable"], marks=on_request)])
def test_a_run_with_wrong_labels_stops_with_the_reason(tmp_path, prompts_file, flags):
    wrong = tmp_path / "wrong.jsonl"
    write_rows(wrong, ({**row, "answer": "1"} for row in read_rows(prompts_file)))
    result = start_training(
        tmp_path / "run", wrong, *SMALL_STEPS, "--swap.self_test_steps", "1", *flags
    )
    assert result.returncode == 2
    (line,) = errors(result.stderr)
    assert line.startswith(
        "error: no correct rollout got a non-zero process term in the first 1 steps: no rollout was"
    )
    assert list(
        read_rows(tmp_path / "run" / "rollouts" / "step_000001.jsonl")
    )  # where it says to look


def test_a_run_whose_scores_are_not_finite_stops_with_the_reason(tmp_path, prompts_file):
    """Rollouts and their log-probabilities are in order, but the answer template holds a letter
    without a meaning.
    """
    broken = tmp_path / "broken"
    shutil.copytree(POLICY, broken)
    tokenizer = AutoTokenizer.from_pretrained(POLICY)
    weights = load_file(broken / "model.safetensors")
    weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
    weights["model.embed_tokens.weight"][tokenizer.convert_tokens_to_ids("F")] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))

    flags = [
        *SMALL_STEPS,
        "--actor.model_name_or_path",
        str(broken),
        "--swap.close_template",
        r"</think>\n\nF\boxed{",
    ]
    result = start_training(tmp_path / "run", prompts_file, *flags, "--swap.max_skipped_steps", "2")
    assert result.returncode == 2
    reason = (
        r"response \d+ of group \d+: answer_logprobs\[0\] is nan; a log-probability must be finite"
    )
    assert re.search(rf"warning: step 1 was skipped, because {reason}\n", result.stdout), (
        result.stdout[-3000:]
    )
    (line,) = errors(result.stderr)
    assert re.match(
        rf"error: 2 steps in a row were skipped, the last one because {reason}: the policy is no",
        line,
    )
    (metrics,) = read_rows(tmp_path / "run" / "metrics.jsonl")
    assert metrics["step"] == metrics["swap/skipped_steps"] == 1


# Objectives that keep state from step to step: settings, flags of the run, and the metric that
# shows its memory.
TWICE = ["--data.max_samples", "32", "--train.num_episodes", "2"]  # every problem comes back
REMEMBER = {
    "laser_d": (
        # The monitoring set is sampled before step 1 only: without the saved state there would be
        # no target any more.
        {
            "shortest": "40",
            "longest": "320",
            "grid": "8",
            "monitor_prompts": "16",
            "monitor_every": "100",
        },
        [],
        "swap/laser_d_target_",
    ),
    "hapo": ({}, TWICE, "swap/hapo_known_problems"),
    "a_dlp": ({"target": "0.5"}, [], "swap/a_dlp_price"),
    "short_rl": ({"tolerance": "4"}, [], "swap/short_rl_best_accuracy"),
    "lapo": ({"first_stage_steps": "2"}, TWICE, "swap/lapo_known_problems"),
    "length_critic": ({}, [], "swap/critic_r2"),
}


@on_request
@pytest.mark.parametrize("objective", REMEMBER)
def test_an_objectives_state_survives_kill_9(objective, tmp_path, prompts_file):
    """Killed after step 2 and restarted, a run has the same numbers in every step as an undisturbed
    one.
    """
    settings, flags, memory = REMEMBER[objective]
    flags = [*flags, *objective_flags(objective, settings), "--train.full_determinism_enable"]
    flags += ["--ckpt.save_steps", "1", "--ckpt.load_enable"]
    calm = run_training(tmp_path / "calm" / "run", prompts_file, *flags)

    run = Run(tmp_path, prompts_file, flags)
    run.start_and_disturb(
        2, None, signal.SIGKILL, (run.output / "checkpoints" / "_actor" / "global_step2").exists
    )
    result = start_training(run.output, prompts_file, *flags)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert int(re.search(r"resuming from checkpoint global_step(\d)", result.stdout)[1]) in (2, 3)
    rows = list(read_rows(run.output / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    assert of_the_run(rows, "swap/grader_slow") == of_the_run(
        calm, "swap/grader_slow"
    )  # graders were killed
    remembered = {name: value for name, value in calm[-1].items() if name.startswith(memory)}
    assert any(remembered.values())
    print(objective, remembered)
