"""What a process that forbids pickles makes of DeepSpeed's checkpoints, and of others."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    """What a process that forbids pickles says of checkpoints that it loads, and the folder in which one runs code."""
    folder = tmp_path_factory.mktemp("loaded")
    script = """
import os, pickle, sys, torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from openrlhf_swap.integration.policy.checkpoints import forbid_pickles

class Written:
    def __init__(self, *how): self.how = how
    def __reduce__(self): return self.how

path = sys.argv[1] + "/states.pt"
forbid_pickles()
for how in (
    (os.mkdir, (sys.argv[1] + "/was_run",)),
    (getattr, (ZeroStageEnum, "gradients")),
    (ZeroStageEnum, (2,)),
    (getattr, (LossScaler, "__init__")),
):
    torch.save({"zero_stage": Written(*how)}, path)
    try:  # even if the caller asks torch to allow it, as DeepSpeed does
        print(torch.load(path, weights_only=False)["zero_stage"] is ZeroStageEnum.gradients)
    except pickle.UnpicklingError as error:
        print("refused", "mkdir" in str(error), "__init__ of" in str(error))
"""
    result = subprocess.run([sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=True)
    return result.stdout.splitlines()[-4:], folder


def test_a_checkpoint_that_wants_to_run_code_is_refused(loaded):
    lines, folder = loaded
    assert lines[0] == "refused True False"
    assert not (folder / "was_run").exists()


def test_members_of_enumerations_are_read_as_every_python_writes_them(loaded):
    """As getattr(class, name) in 3.11.0 to 3.11.3, as class(value) later; of anything else getattr is refused."""
    assert loaded[0][1:] == ["True", "True", "refused False True"]
