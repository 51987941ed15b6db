"""A Ray whose head is killed during a training."""

import pytest
from support.paths import POLICY
from support.running import words
from support.scripts import python

pytestmark = pytest.mark.slow
# The command itself, with a call that does not end in the place of a training.
SCRIPT = """
import sys
from openrlhf_swap import train

def wait_for_ever(configuration, _):
    import psutil, ray
    from openrlhf_swap.integration.startup.ray import starting_ray

    with starting_ray(configuration) as wait_for_ray:
        wait_for_ray()

        @ray.remote
        def sleep():
            import time
            time.sleep(600)

        sleeping = sleep.remote()
        (head,) = [each for each in psutil.Process().children() if each.name() == "gcs_server"]
        head.kill()
        ray.get(sleeping)

train._train = wait_for_ever
sys.exit(train.run_command(train.main))
"""


def test_the_end_of_rays_head_is_one_line(tmp_path, prompts_file):
    flags = words(
        f"--data.prompt_dataset {prompts_file} --data.input_key problem --data.label_key answer "
        f"--actor.model_name_or_path {POLICY} --data.max_len 400 --rollout.max_new_tokens 320 "
        "--rollout.batch_size 16 --rollout.n_samples_per_prompt 8 --train.batch_size 128 "
        f"--swap.output_dir {tmp_path / 'run'} --ckpt.path {tmp_path / 'run' / 'checkpoints'}"
    )
    ended = python("-c", SCRIPT, *flags)
    assert ended.returncode == 2, ended.stdout[-2000:] + ended.stderr[-2000:]
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: Ray's head at 127.0.0.1:")
    assert line.endswith("(see the kernel's log): no checkpoint was written yet")
