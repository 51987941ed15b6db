"""What DeepSpeed's engines keep and save, against the plan."""

import json
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from support.paths import POLICY
from support.scripts import python
from support.sizing import NODE

from openrlhf_swap.sizing.host import checkpoint_bytes
from openrlhf_swap.sizing.memory import gradients, optimizer
from openrlhf_swap.sizing.models import read_model

ENGINE = """
import json, os, sys
from pathlib import Path
from openrlhf_swap.integration.startup.communication_op import build_communication_op
import deepspeed
from torch import bfloat16, is_tensor
from transformers import AutoModelForCausalLM
from openrlhf.utils.deepspeed import deepspeed_utils
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617"}
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
build_communication_op()
deepspeed.init_distributed(dist_backend="gloo")
def size(tensors): return sum(tensor.nbytes for tensor in tensors if is_tensor(tensor))
results = {}
for stage in (2, 3):
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=bfloat16)
    adam = {"type": "AdamW", "params": {"lr": 1e-6, "torch_adam": True}}  # as in a training
    options = {"offload": False, "adam_offload": False, "zpg": 1}
    config = deepspeed_utils.get_train_ds_config(stage=stage, optim_config=adam, **options)
    config |= {"train_micro_batch_size_per_gpu": 1, "train_batch_size": 2}
    groups = deepspeed_utils.get_optimizer_grouped_parameters(model, 0.0)
    given = {"model": model, "model_parameters": groups}
    engine, optimizer, _, _ = deepspeed.initialize(**given, config=config)
    for _ in range(2):
        engine.backward(engine(**model.dummy_inputs).logits.float().sum())
        if stage == 2:
            groups = optimizer.all_grad_tensors.values()
            gradients = size(tensor for group in groups for tensor in group or ()) or gradients
        else:
            gradients = size([optimizer.grad_partitions_flat_buffer])
        engine.step()
    names = {2: "single_partition_of_fp32_groups", 3: "fp32_partitioned_groups_flat"}
    master = getattr(optimizer, names[stage])
    moments = [tensor for state in optimizer.optimizer.state.values() for tensor in state.values()]
    folder = Path(sys.argv[2]) / str(stage)
    engine.save_checkpoint(str(folder), tag="tag")
    saved = sum(file.stat().st_size for file in (folder / "tag").iterdir())
    held = {"gradients": gradients, "optimizer": size(master) + size(moments)}
    results[stage] = {**held, "saved": saved}
print("RESULTS", json.dumps(results), flush=True)
os._exit(0)
"""


@pytest.mark.slow
def test_deepspeed_keeps_and_saves_what_the_plan_says(tmp_path):
    # The tools that compile its op are those of the environment, or it would be compiled anew.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    output = python("-c", ENGINE, POLICY, tmp_path, PATH=path)
    lines = [line for line in output.stdout.splitlines() if line.startswith("RESULTS ")]
    (line,) = lines or [output.stderr]
    model = read_model(str(POLICY), 512)
    for stage, found in json.loads(line.removeprefix("RESULTS ")).items():
        settings = replace(NODE, ranks=1, stage=int(stage))
        assert found["gradients"] == gradients(model, settings, backward=False)["gradients"]
        # Beside the states only the steps' counters and a padding of a few numbers.
        assert found["optimizer"] == pytest.approx(optimizer(model, settings)["optimizer"], abs=200)
        saved = checkpoint_bytes(model, settings).deepspeed
        assert found["saved"] == pytest.approx(saved, rel=0.01)
