"""What a process of a run does not import, because it never calls it."""

import pytest
from support.scripts import python

pytestmark = pytest.mark.slow
TRAINING = {"openrlhf", "deepspeed", "peft", "datasets"}


@pytest.mark.parametrize(
    ("process", "module", "left_out"),
    [
        ("vLLM's worker", "openrlhf_swap.integration.runtime.weights", TRAINING),
        (
            "the command until its checks",
            "openrlhf_swap.train",
            {*TRAINING, "torch", "transformers", "vllm"},
        ),
        (
            "the Scorer of another trainer",
            "openrlhf_swap.scoring.scorer, openrlhf_swap.objectives.swap",
            {*TRAINING, "transformers", "ray", "vllm"},
        ),
        (
            "a grader",
            "openrlhf_swap.rewards.grader",
            {*TRAINING, "torch", "transformers", "ray", "vllm"},
        ),
    ],
)
def test_a_process_imports_none_of(process, module, left_out):
    done = python("-c", f"import sys; import {module}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr[-2000:]
    modules = done.stdout.splitlines()[-1].split()
    print(f"{process}: {len(modules)} modules")
    assert not left_out & set(modules)
