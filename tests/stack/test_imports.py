"""What a process of a run does not import, because it never calls it."""

import pytest
from support.scripts import python

pytestmark = pytest.mark.slow
TRAINING = {"openrlhf", "deepspeed", "peft", "datasets"}
OF_A_SCORER = "openrlhf_swap.scoring.scorer, openrlhf_swap.objectives.swap"  # in another trainer


@pytest.mark.parametrize(
    ("module", "left_out"),
    [
        ("openrlhf_swap.integration.runtime.weights", TRAINING),  # vLLM's worker
        (OF_A_SCORER, {*TRAINING, "transformers", "ray", "vllm"}),
    ],
)
def test_a_process_imports_none_of(module, left_out):
    """The command until its checks, and a grading process, are in tests/unit."""
    done = python("-c", f"import sys; import {module}; print(*sys.modules)")
    assert done.returncode == 0, done.stderr[-2000:]
    modules = done.stdout.splitlines()[-1].split()
    assert not left_out & set(modules)
