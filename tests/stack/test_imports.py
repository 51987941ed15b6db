"""What a process of a run does not import, because it never calls it."""

import pytest
from support.scripts import python

pytestmark = pytest.mark.slow
TRAINING = {"openrlhf", "deepspeed", "peft", "datasets"}


LARGE = {*TRAINING, "torch", "transformers", "vllm"}


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("openrlhf_swap.integration.runtime.weights", TRAINING),  # vLLM's worker
        ("openrlhf_swap.train", LARGE),  # the command until its checks
        (  # the Scorer of another trainer
            "openrlhf_swap.scoring.scorer, openrlhf_swap.objectives.swap",
            {*TRAINING, "transformers", "ray", "vllm"},
        ),
        ("openrlhf_swap.rewards.grader", {*LARGE, "ray"}),
    ],
)
def test_a_process_imports_none_of(module, left_out):
    done = python("-c", f"import sys; import {module}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr[-2000:]
    modules = done.stdout.splitlines()[-1].split()
    assert not left_out & set(modules)
