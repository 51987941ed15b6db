"""The way that weights take to the engines of a run, without the imports of the transfer itself."""

from types import SimpleNamespace
from typing import Any

from openrlhf_swap.packages import is_cpu_build

# vLLM's worker imports the module of its extension, and so knows our receivers.
EXTENSION = "openrlhf_swap.integration.runtime.weights.WorkerExtension"


def way_of(args: SimpleNamespace) -> str:
    """The name of the receiver of a run: a shared GPU's memory, NCCL, or bytes over Ray."""
    shares_gpus = args.train.colocate_all and not args.train.async_enable
    if args.vllm.sync_backend == "nccl" and shares_gpus:
        return "swap_ipc"
    return "swap_bytes" if is_cpu_build() else "swap_nccl"


def engine_arguments(args: SimpleNamespace) -> dict[str, Any]:
    """The arguments of vLLM for an engine that receives weights."""
    return {"worker_extension_cls": EXTENSION, "weight_transfer_config": {"backend": way_of(args)}}
