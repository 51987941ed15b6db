"""A training on a CPU with the code path of GPUs that vLLM and DeepSpeed share: sleep, and weights over CUDA IPC.

    FAKE_GPU=FOLDER python -m support.fake_gpu ...   as python -m openrlhf_swap.train, with tests/ on PYTHONPATH

A slot that Ray assigns stands for a GPU, a file in FOLDER for a tensor in its memory. What must not happen on a GPU
(generation without a cache, weights for a sleeping engine) fails here too. With DROPPED_UPDATE=N the N-th weight
update does not reach vLLM; with HELD_UPDATE=FILE the first stays on its way, and FILE appears.
"""

import math
import os
import sys
import time
from pathlib import Path
from unittest import mock

import torch
import torch.multiprocessing.reductions

from openrlhf_swap.integration.generation import rollout_actor
from openrlhf_swap.integration.policy import actors

EVERYTHING = {"weights", "kv_cache"}


def physical_gpu():
    """The slot that Ray assigned to this process: two processes on one GPU share it."""
    return "GPU-" + os.environ["CUDA_VISIBLE_DEVICES"]


def open_shared(path, dtype, shape, _size, _strides, _offset, device):
    """The tensor in a file; the device is in the place where CUDA's arguments have it."""
    assert device is None, "of a CPU worker"
    return torch.from_file(path, size=math.prod(shape), dtype=dtype).view(tuple(shape))


def share(tensor):
    """Instead of a CUDA handle: a function, and its arguments with the sender's device in place 6."""
    path = Path(os.environ["FAKE_GPU"]) / f"shared-{os.getpid()}"
    path.write_bytes(tensor.detach().contiguous().view(torch.uint8).flatten().numpy().tobytes())
    return open_shared, (str(path), tensor.dtype, tensor.shape, None, None, None, "the sender's")


# Every process that imports the classes below by name has these.
for name in ("ppo_actor", "utils"):  # OpenRLHF itself can only be imported after our package
    sys.modules[f"openrlhf.trainer.ray.{name}"].get_physical_gpu_id = physical_gpu
torch.multiprocessing.reductions.reduce_tensor = share


class FakeWorker(rollout_actor.CpuWorker):
    """The extension of vLLM's worker."""

    def update_weight_cuda_ipc(self, *args, **kwargs):
        if held := os.environ.get("HELD_UPDATE"):
            Path(held).touch()
            time.sleep(600)
        super().update_weight_cuda_ipc(*args, **kwargs)


class FakePolicyActor(actors.IntrinsicRewardActor):
    """The policy's actor."""


class FakeRolloutActor(rollout_actor.CpuRolloutActor):
    """An engine that knows what would be in its GPU's memory."""

    worker = FakeWorker

    async def __init__(self, *args, **kwargs):
        assert kwargs.pop("enable_sleep_mode")
        self._resident, self._updates = set(EVERYTHING), 0
        self._dropped = int(os.environ.get("DROPPED_UPDATE", "0"))
        await super().__init__(*args, **kwargs)

    async def sleep(self, level=1):
        assert self.llm.output_processor.get_num_unfinished_requests() == 0, "asleep with requests open"
        self._resident = set()
        await self.llm.engine_core.call_utility_async("pause_scheduler", "abort", True)

    async def wake_up(self, tags=None):
        self._resident |= set(tags or EVERYTHING)
        if self._resident == EVERYTHING:
            await self.llm.engine_core.call_utility_async("resume_scheduler")

    async def generate(self, *args, **kwargs):
        assert self._resident == EVERYTHING, f"generation with {self._resident}"
        return await super().generate(*args, **kwargs)

    async def update_weight_cuda_ipc(self, name, dtype, shape, ipc_handles, empty_cache=False):
        assert self._resident == {"weights"}, f"an update with {self._resident}"
        update = self._updates + 1
        self._updates += empty_cache  # set with the last parameter
        if update != self._dropped:
            await super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)


def main(argv):
    from openrlhf_swap import train
    from openrlhf_swap.command import run_command

    with (
        mock.patch.object(actors, "IntrinsicRewardActor", FakePolicyActor),
        mock.patch.object(rollout_actor, "CpuRolloutActor", FakeRolloutActor),
    ):
        return run_command(train.main, argv)


if __name__ == "__main__":
    from support.fake_gpu import main  # the classes have to have a name that workers can import

    sys.exit(main(sys.argv[1:]))
