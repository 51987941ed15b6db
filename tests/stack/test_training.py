"""The state of objectives in whole runs that are killed; the loop's unit tests have it, too."""

import os
import re
import signal

import pytest
from support.disturbing import Run
from support.running import objective_flags, of_the_run, run_training, start_training

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow
on_request = pytest.mark.skipif(
    "TEST_SLOW" not in os.environ, reason="up to four minutes: TEST_SLOW=1"
)


# Objectives that keep state from step to step: settings, flags of the run, and the metric that
# shows its memory.
TWICE = ["--data.max_samples", "32", "--train.num_episodes", "2"]  # every problem comes back
REMEMBER = {
    # The monitoring set is sampled before step 1 only: without the saved state there would be no
    # target any more.
    "laser_d": (
        dict(shortest="40", longest="320", grid="8", monitor_prompts="16", monitor_every="100"),
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
    saved = run.output / "checkpoints" / "_actor" / "global_step2"
    run.start_and_disturb(2, None, signal.SIGKILL, saved.exists)
    result = start_training(run.output, prompts_file, *flags)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    assert int(re.search(r"resuming from checkpoint global_step(\d)", result.stdout)[1]) in (2, 3)
    rows = list(read_rows(run.output / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    slow = "swap/grader_slow"  # graders were killed
    assert of_the_run(rows, slow) == of_the_run(calm, slow)
    remembered = {name: value for name, value in calm[-1].items() if name.startswith(memory)}
    assert any(remembered.values())
