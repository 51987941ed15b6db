"""What lets the same OpenRLHF stack run on a machine without CUDA.

OpenRLHF 0.11.2 assumes CUDA in a handful of places. On a CPU build of torch `install()` replaces exactly these, in
every process that imports `openrlhf_swap.integration`, before OpenRLHF itself is imported; on a CUDA or ROCm build
it does nothing. vLLM's side is in `rollout_cpu.py`.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import sys
import time
import types
from pathlib import Path
from typing import Any, NoReturn

import einops
import psutil
import torch
from torch import Tensor

STARTING_SECONDS = 20  # between taking the lock and starting the compiler, or between loading the op and letting go


def is_cpu_build() -> bool:
    """True when torch was built without an accelerator.

    The build decides, not `torch.cuda.is_available()`: on a GPU cluster Ray hides the devices from actors that
    asked for none, and those must not be patched.
    """
    return torch.version.cuda is None and torch.version.hip is None


def install() -> None:
    """Replace OpenRLHF's CUDA assumptions by CPU equivalents. Idempotent; does nothing on an accelerator build."""
    if not is_cpu_build() or getattr(torch.cuda, "_openrlhf_swap_cpu", False):
        return
    torch.cuda._openrlhf_swap_cpu = True
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    # Ray reads this when it is imported, and then listens on 127.0.0.1 only (on Linux too, whatever the name says).
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))
    _put_first_on_path(Path(sys.prefix) / "bin")
    _replace_torch_cuda()
    _replace_flash_attn()
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
    cpu = _CpuDevice("cpu")
    torch.cuda.current_device = lambda: cpu
    # One function object a name: torch.compile keeps a rule for each and refuses duplicates.
    torch.cuda.set_device = lambda *_args, **_kwargs: None
    torch.cuda.synchronize = lambda *_args, **_kwargs: None
    torch.cuda.empty_cache = lambda *_args, **_kwargs: None
    torch.cuda.current_stream = lambda *_args, **_kwargs: None


def _replace_flash_attn() -> None:
    """OpenRLHF imports flash_attn in any case; for packed samples it calls what takes padding out and in."""
    if importlib.util.find_spec("flash_attn") is not None:
        return

    def unavailable(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise RuntimeError("flash-attn is not available on CPU; remedy: run without --ds.ring_attn_size")

    modules = {
        "flash_attn": {},
        "flash_attn.bert_padding": {
            "index_first_axis": lambda values, indices: values[indices],
            "pad_input": _pad_input,
            "rearrange": einops.rearrange,
            "unpad_input": _unpad_input,
        },
        "flash_attn.utils": {},
        "flash_attn.utils.distributed": {"all_gather": unavailable},
    }
    for name, members in modules.items():
        module = types.ModuleType(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, loader=None, is_package=True)
        module.__path__ = []
        vars(module).update(members)
        sys.modules[name] = module


def _unpad_input(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """(B, T, ...) and mask (B, T) -> (tokens, ...), their places in B * T, cumulated lengths, the longest, lengths."""
    lengths = mask.sum(-1, dtype=torch.int32)
    places = mask.flatten().nonzero().flatten()
    cumulated = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return values.flatten(0, 1)[places], places, cumulated, int(lengths.max()), lengths


def _pad_input(values: Tensor, places: Tensor, rows: int, width: int) -> Tensor:
    """The way back: (tokens, ...) -> (B, T, ...), zero where there is no token."""
    padded = values.new_zeros(rows * width, *values.shape[1:])
    return padded.index_copy(0, places, values).unflatten(0, (rows, width))


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


def build_communication_op() -> None:
    """Compile DeepSpeed's shared-memory communication op where this process looks for it; nothing when it is there.

    DeepSpeed would compile it inside the first actor, half a minute to minutes without a word. An actor that is
    stopped meanwhile leaves the compiler's lock behind, and every later start waits for it without end: so one
    process compiles, beforehand, and removes a lock that nobody holds.
    """
    from deepspeed.accelerator import get_accelerator
    from filelock import FileLock

    builder = get_accelerator().create_op_builder("ShareMemCommBuilder")
    if builder is None or not builder.is_compatible(verbose=False):
        return
    folder = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / builder.name
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".building")):
        _wait_for_lock(folder)
        if not any(folder.glob("*.so")):
            print("compiling DeepSpeed's communication op, once: half a minute or more", flush=True)
        builder.load(verbose=False)


def _wait_for_lock(folder: Path) -> None:
    lock = folder / "lock"
    with contextlib.suppress(FileNotFoundError):  # its holder removes it
        while True:
            if time.time() - lock.stat().st_mtime > STARTING_SECONDS and not _is_compiling(folder):
                print(f"removing {lock}, left behind by a process that was stopped while it compiled", flush=True)
                lock.unlink()
            time.sleep(0.5)


def _is_compiling(folder: Path) -> bool:
    """True while a ninja runs in the folder: torch starts it there, and its lock does not say whose it is."""
    for process in psutil.process_iter(["name", "cwd"]):
        if process.info["name"] == "ninja" and process.info["cwd"] == str(folder.resolve()):
            return True
    return False
