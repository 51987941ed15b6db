"""What a process that forbids pickles makes of DeepSpeed's checkpoints, and of others."""

import pytest
from support.scripts import python

pytestmark = pytest.mark.slow


LOADING = """
import os, pickle, sys, torch
from deepspeed.runtime.fp16.loss_scaler import LossScaler
from deepspeed.runtime.zero.config import ZeroStageEnum
from openrlhf_swap.integration.policy.safe_loading import forbid_pickles

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


def test_a_process_that_forbids_pickles_reads_data_alone(tmp_path):
    """Code is refused, and so is getattr of anything but an enumeration's member.

    Python writes a member as getattr(class, name) in 3.11.0 to 3.11.3, and as class(value) later.
    """
    result = python("-c", LOADING, tmp_path)
    found = result.stdout.splitlines()[-4:]
    assert found == ["refused True False", "True", "True", "refused False True"]
    assert not (tmp_path / "was_run").exists()
