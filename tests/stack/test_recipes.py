"""Every recipe trains two steps of the quickstart's policy.

Other flags overrule only sizes, and what this machine lacks.
"""

import math
import os

import pytest
from support.paths import POLICY
from support.running import words
from support.scripts import python

from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.recipes import NAMES
from openrlhf_swap.rollouts.families import prompt_text
from openrlhf_swap.rollouts.rollout import prompt_key

REASON = "one start each, a minute: TEST_SLOW=1"
pytestmark = [pytest.mark.slow, pytest.mark.skipif("TEST_SLOW" not in os.environ, reason=REASON)]
MONITOR = "--swap.{0}.monitor_prompts 4 --swap.{0}.monitor_samples 4 --swap.{0}.shortest 40"
# The recipes name the lengths of real responses.
SIZES = {
    "thinkprune": ["--swap.thinkprune.limits", "300,200", "--swap.thinkprune.stage_steps", "1"],
    "lapo": ["--swap.lapo.limits", "", "--swap.lapo.first_stage_steps", "1"],
    "autothink": ["--swap.autothink.limits", ""],
    "dler": ["--no-algo.dynamic_filtering_enable"],  # 16 prompts a step may not fill it
    **{name: words(MONITOR.format(name)) for name in ("laser_d", "laser_de")},
    "l1_exact": ["--swap.l1_exact.shortest", "40", "--swap.l1_exact.longest", "200"],
    "l1_max": ["--swap.l1_max.shortest", "40", "--swap.l1_max.longest", "200"],
    "needed": ["--vllm.sync_backend", "gloo", "--no-ckpt.save_hf"],
    "own_bill": ["--vllm.sync_backend", "gloo", "--no-ckpt.save_hf"],
    "swap_r1": ["--vllm.sync_backend", "gloo", "--no-ckpt.save_hf"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_trains(name, tmp_path, prompts_file, tokenizer):
    flags = words(
        f"--swap.recipe {name} --swap.output_dir {tmp_path / 'run'} --swap.step_tokens 8 "
        f"--actor.model_name_or_path {POLICY} --data.prompt_dataset {prompts_file} "
        "--data.input_key problem --data.label_key answer --data.apply_chat_template "
        "--data.max_samples 32 --data.max_len 700 --rollout.batch_size 16 "
        "--rollout.n_samples_per_prompt 4 --rollout.max_new_tokens 320 "
        "--rollout.micro_batch_size 32 --train.batch_size 64 --train.micro_batch_size 32 "
        "--swap.training_steps 2"
    )
    flags += ["--swap.close_template", r"</think>\n\n**Final Answer**\n\boxed{"]
    if name == "adaptthink":
        problems = [row["problem"] for row in read_rows(prompts_file)]
        keys = [prompt_key(prompt_text(tokenizer, problem)) for problem in problems]
        write_rows(tmp_path / "reference.jsonl", ({"key": key, "accuracy": 0.5} for key in keys))
        flags += ["--swap.adaptthink.reference", str(tmp_path / "reference.jsonl")]
        flags += ["--swap.adaptthink.thinking_start", "ones"]  # the policy knows few words
    flags += SIZES.get(name, ())
    result = python("-m", "openrlhf_swap", "train", *flags, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    rows = list(read_rows(tmp_path / "run" / "metrics.jsonl"))
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        losses = [row[key] for key in row if key.endswith("policy_loss")]
        assert losses
        assert all(map(math.isfinite, losses))
