"""The asynchronous trainer: what it shares with the synchronous one, what differs, and what it
survives.
"""

import os
import re
import shutil
import signal
import time

import pytest
import torch
from addition import problems, prompt
from safetensors.torch import load_file, save_file
from support.disturbing import Run, errors
from support.paths import POLICY
from support.running import objective_flags, of_the_run, run_training, words

from openrlhf_swap.files import read_rows
from openrlhf_swap.flags.configuration import REWARD_FILE

pytestmark = pytest.mark.slow
on_request = pytest.mark.skipif(
    "TEST_SLOW" not in os.environ, reason="one to three minutes on two cores: TEST_SLOW=1"
)
COMPARED = words(
    "--train.full_determinism_enable --swap.rollouts_every 1 --swap.rollouts_groups 16 "
    "--algo.advantage.is_correction_level token --train.num_episodes 2 --data.max_samples 40"
)
AGE = "swap/batch_age"
ASYNC = ["--train.async_enable", "--train.async_queue_size"]
OBJECTIVES = {
    "swap": {},
    "length_critic": {},
    "laser_d": {
        **{"shortest": "40", "longest": "320", "grid": "8"},
        **{"monitor_prompts": "16", "monitor_every": "3"},
    },
}


def tables(folder):
    return [path.read_text() for path in sorted((folder / "rollouts").iterdir())]


@pytest.fixture
def one_thread(monkeypatch):
    """Both trainers with the threads of the asynchronous one: others add in another order."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@on_request
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_without_a_learning_rate_it_is_the_synchronous_run(objective, tmp_path, prompts_file):
    """Two episodes of two steps, eight prompts left over in each: rollouts, rewards, what is made
    of them, metrics.
    """
    chosen = objective_flags(objective, OBJECTIVES[objective])
    flags = [*COMPARED, "--actor.adam.lr", "1e-30", *chosen]
    expected = run_training(tmp_path / "sync", prompts_file, *flags)
    found = run_training(tmp_path / "async", prompts_file, *flags, *ASYNC, "2")
    assert [row["step"] for row in expected] == [1, 2, 3, 4]
    assert of_the_run(found, AGE) == of_the_run(expected, AGE)
    assert tables(tmp_path / "async") == tables(tmp_path / "sync")
    assert len(tables(tmp_path / "sync")) == 4
    assert found[0][AGE] == 0 and max(row[AGE] for row in found) > 0


@on_request
@pytest.mark.usefixtures("one_thread")
def test_with_a_learning_rate_step_1_is_equal_and_the_gap_grows_with_the_queue(
    tmp_path, prompts_file
):
    flags = [*COMPARED, "--actor.adam.lr", "1e-4", "--train.num_episodes", "3"]
    expected = run_training(tmp_path / "sync", prompts_file, *flags)
    gaps = [gap(expected)]
    for size in (1, 4):
        rows = run_training(tmp_path / f"async_{size}", prompts_file, *flags, *ASYNC, str(size))
        ours, theirs = of_the_run(rows, AGE), of_the_run(expected, AGE)
        equal = [one == other for one, other in zip(ours, theirs, strict=True)]
        assert equal[0] and not any(equal[2:])
        ages = [row[AGE] for row in rows]
        assert ages[0] == 0 and min(ages[1:]) == 1 and max(ages) <= size
        assert all(row["swap/adv_process_absmean"] > 0 for row in rows)
        assert all(row["timing/generation"] > 0 for row in rows)
        assert (tmp_path / f"async_{size}" / "policy" / "model.safetensors").exists()
        gaps.append(gap(rows))
    print("mean |vllm_kl|: synchronous, queue 1, queue 4:", gaps)
    assert gaps == sorted(gaps) and gaps[0] < 0.5 * gaps[1]


def gap(rows):
    return sum(abs(row["vllm_kl"]) for row in rows) / len(rows)


@on_request
def test_a_killed_run_resumes_with_its_objective_and_its_prompts(tmp_path, prompts_file):
    flags = objective_flags("laser_d", {**OBJECTIVES["laser_d"], "monitor_every": "100"})
    flags += ["--ckpt.save_steps", "2", "--ckpt.load_enable", *ASYNC, "2"]
    flags += words("--swap.rollouts_every 1 --swap.rollouts_groups 16 --train.num_episodes 2")
    flags += words("--data.max_samples 56 --swap.generation_timeout 30 --actor.adam.lr 1e-4")
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
        assert "died" in line and "--ckpt.load_enable to resume from global_step" in line
    # Stopped, not dead: the time limit ends both actors, in the middle of the prompts or of the
    # weights.
    output, status = run.start_and_disturb(5, "VLLM::EngineCore", signal.SIGSTOP)
    assert status == 2
    (line,) = errors(output)
    reasons = "no prompt was finished|the rollout engines did not take new weights"
    assert re.search(f"({reasons}) within --swap.generation_timeout 30 seconds", line)

    rows = run_training(run.output, prompts_file, *flags)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    targets = [
        {name: row[name] for name in row if name.startswith("swap/laser_d_target")} for row in rows
    ]
    assert targets[0] and all(found == targets[0] for found in targets)
    prompts = prompts_of(run.output)
    assert prompts == prompts_of(calm) and len(prompts) == 6


def prompts_of(folder):
    """The prompts of each step."""
    paths = sorted((folder / "rollouts").iterdir())
    return [list(dict.fromkeys(row["prompt"] for row in read_rows(path))) for path in paths]


@on_request
def test_each_token_of_a_response_has_the_log_probability_of_the_policy_that_drew_it(
    ray_session, tmp_path, tokenizer
):
    """Partial rollouts: half of each response by the embedded policy, half by one with a flatter
    output.
    """
    import ray
    from support.hand_set import HandSetActor
    from vllm import SamplingParams

    from openrlhf_swap.integration.driver.rows import experience_row
    from openrlhf_swap.integration.engine.responses import EngineRequest

    flat = load_file(POLICY / "model.safetensors")
    flat["model.norm.weight"] = flat["model.norm.weight"] * 0.3
    shutil.copytree(POLICY, tmp_path / "flat")
    save_file(flat, tmp_path / "flat" / "model.safetensors", metadata={"format": "pt"})
    options = {"enforce_eager": True, "dtype": "bfloat16", "max_model_len": 400}
    options |= {"gpu_memory_utilization": 0.2, "enable_prefix_caching": False}
    options |= {"logprobs_mode": "processed_logprobs", "max_logprobs": 1}
    options["weight_transfer_config"] = {"backend": "swap_bytes"}
    options["worker_extension_cls"] = "openrlhf_swap.integration.runtime.weights.WorkerExtension"
    engine = ray.remote(num_gpus=1)(HandSetActor).remote(
        model=str(POLICY), remote_rm_url=[str(REWARD_FILE)], num_gpus=1, **options
    )
    ray.get(engine.__ray_ready__.remote(), timeout=300)
    problem = next(iter(problems(3)))
    sampling = SamplingParams(
        temperature=1.0, max_tokens=300, ignore_eos=True, logprobs=1, skip_special_tokens=False
    )
    ray.get(engine.prepare.remote(tokenizer, 400, end_of_thought="</think>", grader="math"))
    request = EngineRequest(prompt(problem), problem.answer, 64, sampling)
    drawing = engine.respond.remote(request)
    while not ray.get(engine.get_num_unfinished_requests.remote()):
        time.sleep(0.01)
    time.sleep(0.5)  # about a quarter of what all of it takes
    ray.get(engine.pause_generation.remote())
    ray.get(engine.set_weights.remote(str(tmp_path / "flat" / "model.safetensors")))
    ray.get(engine.resume_generation.remote())
    (rollouts,) = ray.get(drawing, timeout=300)
    ray.kill(engine)

    for rollout in rollouts:
        experience = experience_row(rollout, 400)
        actions = experience.action_mask[0].bool()
        drawn = experience.rollout_log_probs[0][actions]
        folders = (POLICY, tmp_path / "flat")
        old, new = (logprobs(folder, experience.sequences, actions) for folder in folders)
        off = [torch.cat([drawn[:t] - old[:t], drawn[t:] - new[t:]]) for t in range(len(drawn))]
        t = int(torch.stack(off).abs().sum(1).argmin())
        assert 10 < t < len(drawn) - 10
        assert (drawn[:t] - old[:t]).abs().mean() < 0.02 < 0.1 < (drawn[:t] - new[:t]).abs().mean()
        assert (drawn[t:] - new[t:]).abs().mean() < 0.02 < 0.1 < (drawn[t:] - old[t:]).abs().mean()


def logprobs(folder, sequences, actions):
    """A float32 forward of one policy over everything, on its own."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        every = model(sequences).logits[0, :-1].log_softmax(-1)
    return every.gather(-1, sequences[0, 1:, None]).squeeze(-1)[actions]
