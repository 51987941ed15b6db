"""What lets the same OpenRLHF stack run on a machine without CUDA.

OpenRLHF 0.11.2 assumes CUDA in a handful of places. On a CPU build of torch `install()` replaces exactly these, in
every process that imports `openrlhf_swap.integration`, before OpenRLHF itself is imported; on a CUDA or ROCm build
it does nothing. vLLM's side is in `vllm.py`.
"""

from __future__ import annotations

import os
import sys
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.flags.device import is_cpu_build

# Every process of a CPU run inherits these; what is already set wins.
CPU_ENVIRONMENT = {
    "DS_ACCELERATOR": "cpu",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # The engine's model in the engine's own process. In one more, it would import everything a fifth time, and be
    # bound to all cores but one.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # A thread that waits for another sleeps. Those that spin take the cores from what they wait for, as soon as a
    # second process is at work: products of matrices then take longer with two threads than with one.
    "OMP_WAIT_POLICY": "PASSIVE",
}
THREADS = "OMP_NUM_THREADS"  # of each process; Ray would give each of them one


def set_cpu_environment() -> None:
    """Give this process, and those that it starts, what a CPU run needs."""
    for name, value in CPU_ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@cache
def install() -> None:
    """Replace OpenRLHF's CUDA assumptions by CPU equivalents. Idempotent; does nothing on an accelerator build."""
    if not is_cpu_build():
        return
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    if "RAY_ADDRESS" not in os.environ:
        # Ray reads this when it is imported, and listens on 127.0.0.1 only (on Linux too, whatever the name says).
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    _put_first_on_path(Path(sys.prefix) / "bin")
    _replace_torch_cuda()
    _replace_collectives()


def _put_first_on_path(folder: Path) -> None:
    """Find this environment's ninja, however Python was called: another version of it compiles everything again."""
    others = [entry for entry in os.environ.get("PATH", "").split(os.pathsep) if entry != str(folder)]
    os.environ["PATH"] = os.pathsep.join([str(folder), *others])


class _CpuDevice(str):
    """The CPU in every form in which OpenRLHF uses `torch.cuda.current_device()`.

    As an argument it is the device string "cpu"; inside an f-string it is "0", because the replay buffer builds
    `f"cuda:{current_device()}"` (a device which it then never uses).
    """

    def __format__(self, spec: str) -> str:
        return "0"


def _replace_torch_cuda() -> None:
    vars(torch.cuda)["current_device"] = partial(_CpuDevice, "cpu")
    for name in ("set_device", "synchronize", "empty_cache", "current_stream"):
        # One function object a name: torch.compile keeps a rule for each and refuses duplicates.
        setattr(torch.cuda, name, lambda *_args, **_kwargs: None)


class GlooCommunicator:
    """vLLM's weight-sync communicator over gloo: the same rendezvous, the same `broadcast` call as the NCCL one."""

    def __init__(self, host: str, port: int, rank: int, world_size: int) -> None:
        """Meet the other ranks at `host:port`; returns when all `world_size` of them are there."""
        from vllm.distributed.utils import stateless_init_torch_distributed_process_group

        self._group = stateless_init_torch_distributed_process_group(host, port, rank, world_size, backend="gloo")

    def broadcast(self, tensor: Tensor, src: int, stream: None = None) -> None:
        """Send `tensor` from rank `src` to all others, in place."""
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = src, 0
        self._group.broadcast([tensor.detach()], options).wait()


def _replace_collectives() -> None:
    """Weight sync over gloo, device mesh on CPU. Must run before `ppo_actor` imports the first one by name."""
    from openrlhf.utils import distributed_util

    def rendezvous(host: str, port: int, rank: int, world_size: int, _device: Any) -> GlooCommunicator:
        return GlooCommunicator(host, port, rank, world_size)

    distributed_util.stateless_init_process_group = rendezvous

    from openrlhf.utils.deepspeed import deepspeed as strategy_module

    cuda_mesh = strategy_module.init_device_mesh
    strategy_module.init_device_mesh = lambda _device, *args, **kwargs: cuda_mesh("cpu", *args, **kwargs)

    # The policy's actor asks for its moving average on "cuda".
    strategy = strategy_module.DeepspeedStrategy
    moving_average = strategy.moving_average
    strategy.moving_average = lambda self, model, ema, beta, _device: moving_average(self, model, ema, beta, "cpu")
