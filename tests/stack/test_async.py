"""The asynchronous trainer beside the synchronous one, and what it survives."""

import os
import re
import signal

import pytest
from support.disturbing import Run, errors
from support.running import objective_flags, of_the_run, run_training, words

from openrlhf_swap.files import read_rows

pytestmark = pytest.mark.slow
on_request = pytest.mark.skipif(
    "TEST_SLOW" not in os.environ, reason="one to three minutes on two cores: TEST_SLOW=1"
)
COMPARED = words(
    "--train.full_determinism_enable --swap.rollouts_every 1 --swap.rollouts_groups 16 "
    "--algo.advantage.is_correction_level token --train.num_episodes 2 --data.max_samples 40"
)
AGE = "swap/batch_age"
ENGINES = "vllm_kl"  # of the engines' log-probabilities from the policy's
ASYNC = ["--train.async_enable", "--train.async_queue_size"]
OBJECTIVES = {
    "swap": {},
    "laser_d": {
        "shortest": "40",
        "longest": "320",
        "grid": "8",
        "monitor_prompts": "16",
        "monitor_every": "3",
    },
}


def tables(folder):
    return [path.read_text() for path in sorted((folder / "rollouts").iterdir())]


@on_request
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_a_learning_rate_it_is_the_synchronous_run(objective, tmp_path, prompts_file):
    """Two episodes of two steps, with eight prompts left over in each."""
    chosen = objective_flags(objective, OBJECTIVES[objective])
    flags = [*COMPARED, "--actor.adam.lr", "1e-30", *chosen]
    expected = run_training(tmp_path / "sync", prompts_file, *flags)
    found = run_training(tmp_path / "async", prompts_file, *flags, *ASYNC, "2")
    assert [row["step"] for row in expected] == [1, 2, 3, 4]
    assert of_the_run(found, AGE, ENGINES) == of_the_run(expected, AGE, ENGINES)
    # The engine computes other batches, whose log-probabilities round differently.
    assert [row[ENGINES] for row in found] == pytest.approx(
        [row[ENGINES] for row in expected], rel=1e-3
    )
    assert tables(tmp_path / "async") == tables(tmp_path / "sync")
    assert len(tables(tmp_path / "sync")) == 4
    assert found[0][AGE] == 0
    assert max(row[AGE] for row in found) > 0


@on_request
def test_a_killed_run_resumes_with_its_objective_and_its_prompts(tmp_path, prompts_file):
    flags = objective_flags("laser_d", {**OBJECTIVES["laser_d"], "monitor_every": "100"})
    flags += [*ASYNC, "2"]
    flags += words(
        "--ckpt.save_steps 2 --ckpt.load_enable --swap.rollouts_every 1 --swap.rollouts_groups 16 "
        "--train.num_episodes 2 --data.max_samples 56 --swap.generation_timeout 30 "
        "--actor.adam.lr 1e-4"
    )
    calm = tmp_path / "calm" / "run"
    run_training(calm, prompts_file, *flags)

    run = Run(tmp_path, prompts_file, flags)
    _, status = run.start_and_disturb(3, None, signal.SIGKILL)
    assert status == -signal.SIGKILL
    for step, name in ((3, "IntrinsicRewardActor"), (5, "VLLM::EngineCore")):
        output, status = run.start_and_disturb(step, name, signal.SIGKILL)
        assert re.search("resuming from checkpoint global_step[24]", output)
        assert status == 2
        (line,) = errors(output)
        assert "died" in line
        assert "start the same command again to resume from global_step" in line
    # A stopped process is not dead: only the time limit ends the run.
    output, status = run.start_and_disturb(5, "VLLM::EngineCore", signal.SIGSTOP)
    assert status == 2
    (line,) = errors(output)
    sampled = "no prompt was finished within --swap.generation_timeout 30 seconds"
    sent = "weights to the rollout engines did not end within 30 seconds"
    assert sampled in line or sent in line

    rows = run_training(run.output, prompts_file, *flags)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    targets = [name for name in rows[0] if name.startswith("swap/laser_d_target")]
    assert targets
    for name in targets:
        assert {row[name] for row in rows} == {rows[0][name]}
    prompts = prompts_of(run.output)
    assert len(prompts) == 6
    assert prompts == prompts_of(calm)


def prompts_of(folder):
    """The prompts of each step, each of them once."""
    steps = []
    for path in sorted((folder / "rollouts").iterdir()):
        prompts = [row["prompt"] for row in read_rows(path)]
        steps.append(list(dict.fromkeys(prompts)))
    return steps
