"""A training on a CPU that takes the way of GPUs shared by vLLM and DeepSpeed.

    FAKE_GPU=FOLDER python -m support.fake_gpu ...   # flags as of `openrlhf_swap train`

The engine sleeps, and weights travel over CUDA IPC. A slot that Ray assigns stands for a GPU, a
file in FOLDER for memory of it that is shared. What must not happen on a GPU (generation without a
cache, weights for a sleeping engine) fails here too. With DROPPED_UPDATE=N the N-th weight update
does not reach vLLM. `tests/` must be on PYTHONPATH.
"""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch
from torch.multiprocessing import reductions
from vllm.distributed.weight_transfer import ipc_engine, packed_tensor

from openrlhf_swap.integration.engine import actor
from openrlhf_swap.integration.policy import actors
from openrlhf_swap.integration.weights import worker as weights

EVERYTHING = {"weights", "kv_cache"}


class TorchWithGpu:
    """Stands in for torch: a tensor on a GPU is a file in FOLDER."""

    def __getattr__(self, name):
        return getattr(torch, name)

    def empty(self, size, dtype, device):
        assert device == "cuda"
        path = Path(os.environ["FAKE_GPU"]) / f"shared-{os.getpid()}"
        tensor = torch.from_file(str(path), shared=True, size=size, dtype=dtype)
        tensor.path = str(path)
        return tensor


def share(tensor):
    """Stands in for a CUDA handle, which has the sender's device as argument 6."""
    return rebuild, (tensor.path, tensor.numel(), None, None, None, None, "the sender's")


def rebuild(path, size, _strides, _offset, _class, _dtype, device):
    """Open the file of a shared tensor."""
    assert device is None, "a CPU worker has no device"
    return torch.from_file(path, shared=True, size=size, dtype=torch.uint8)


# Every process that imports the classes below by name has these.
packed_tensor.torch = TorchWithGpu()
for module in (packed_tensor, ipc_engine):
    module.reduce_tensor = share
reductions.rebuild_cuda_tensor = rebuild
torch.accelerator.current_device_index = lambda: 0
torch.accelerator.synchronize = torch.cuda.ipc_collect = lambda: None
torch.cuda.current_stream = lambda: SimpleNamespace(synchronize=lambda: None)


def gpu_of_slot(_device):
    """Properties of a GPU: processes on one GPU share the slot that Ray assigned."""
    return SimpleNamespace(uuid="GPU-" + os.environ["CUDA_VISIBLE_DEVICES"])


torch.cuda.get_device_properties = gpu_of_slot


class FakeExtension(weights.WorkerExtension):
    """Leads the process of vLLM's worker to this module."""


class FakePolicyActor(actors.IntrinsicRewardActor):
    """Leads the process of the policy's actor to this module."""


class FakeRolloutActor(actor.SwapRolloutActor):
    """Stands in for an engine on a GPU: it knows what would be in the GPU's memory."""

    async def __init__(self, *args, **kwargs):
        assert kwargs.pop("enable_sleep_mode")
        assert kwargs["weight_transfer_config"] == {"backend": "swap_ipc"}
        self._resident = set(EVERYTHING)
        self._updates = 0
        self._dropped = int(os.environ.get("DROPPED_UPDATE", "0"))
        extension = f"{FakeExtension.__module__}.{FakeExtension.__qualname__}"
        await super().__init__(*args, **{**kwargs, "worker_extension_cls": extension})

    async def sleep(self, level=1):
        unfinished = self.llm.output_processor.get_num_unfinished_requests()
        assert unfinished == 0, "asleep with requests open"
        self._resident = set()
        await self.llm.engine_core.call_utility_async("pause_scheduler", "abort", True)

    async def wake_up(self, tags=None):
        self._resident |= set(tags or EVERYTHING)
        if self._resident == EVERYTHING:
            await self.llm.engine_core.call_utility_async("resume_scheduler")

    async def generate(self, *args, **kwargs):
        assert self._resident == EVERYTHING, f"generation with {self._resident}"
        return await super().generate(*args, **kwargs)

    async def transfer_weights(self, method, *info):
        if method == "init_weight_transfer_engine":
            return await super().transfer_weights(method, *info)
        assert self._resident == {"weights"}, f"an update with {self._resident}"
        if method == "start_weight_update":
            self._updates += 1
        if self._updates != self._dropped:
            await super().transfer_weights(method, *info)


def main(argv):
    from openrlhf_swap import train
    from openrlhf_swap.command import run_command
    from openrlhf_swap.flags import rules

    others = [rule for rule in rules.COMBINATIONS if rule is not rules.SLEEP_ON_CPU]
    with (
        mock.patch.object(actors, "IntrinsicRewardActor", FakePolicyActor),
        mock.patch.object(actor, "SwapRolloutActor", FakeRolloutActor),
        mock.patch.object(rules, "COMBINATIONS", others),
    ):
        return run_command(train.main, argv)


if __name__ == "__main__":
    # Workers import the classes by the name of their module, which must not be `__main__`.
    from support.fake_gpu import main

    sys.exit(main(sys.argv[1:]))
