"""What vLLM's worker imports, by the name of its extension, and the policy's way to its engines.

After the import vLLM knows our receivers, the start of an engine is told on the console, and tokens
are drawn in our way on a CPU.
"""

import logging
from types import SimpleNamespace
from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine

from openrlhf_swap.integration.patches import CPU_ENGINE, install
from openrlhf_swap.integration.weights.ipc import IpcReceiver, ipc_sender
from openrlhf_swap.integration.weights.nccl import NcclClient, NcclReceiver, nccl_sender
from openrlhf_swap.integration.weights.over_ray import BytesReceiver, BytesSender
from openrlhf_swap.integration.weights.receiving import EngineClient
from openrlhf_swap.integration.weights.source import PolicyWeights
from openrlhf_swap.integration.weights.way import way_of
from openrlhf_swap.packages import is_cpu_build

RECEIVERS = {"swap_ipc": IpcReceiver, "swap_nccl": NcclReceiver, "swap_bytes": BytesReceiver}

# What an engine does next, by the beginning of a message of vLLM. Of two messages with one meaning,
# one belongs to the older model runner, or to a start that finds compiled code.
START_MESSAGES = {
    "Starting to load model": "loads the weights",
    "Loading model from scratch": "loads the weights",
    "Using cache directory": "compiles the model, or loads what was compiled before",
    "Directly load AOT compilation": "loads the model that was compiled before",
    "GPU KV cache size": "warms up, and captures CUDA graphs unless it runs eagerly",
}


class WorkerExtension:
    """The extension of vLLM's worker: it adds nothing, its name leads the worker to this module."""


class EngineStart(logging.Handler):
    """Tells the start of this process's engine on the console: a minute without another word."""

    def emit(self, record: logging.LogRecord) -> None:
        for message, action in START_MESSAGES.items():
            if record.getMessage().startswith(message):
                print(f"[swap] vLLM: it {action}", flush=True)


def make_sender(
    args: SimpleNamespace,
    engines: list[Any],
    weights: PolicyWeights,
    rank: int,
) -> TrainerWeightTransferEngine:
    """Make what sends the weights by `send_weights()`.

    All ranks of the policy call this function at the same time, and `send_weights()` too.
    """
    way = way_of(args)
    if way == "swap_nccl":
        client = NcclClient(engines, workers=args.vllm.tensor_parallel_size)
        return nccl_sender(client, weights, rank)
    if way == "swap_ipc":
        return ipc_sender(EngineClient(engines), weights, rank)
    return BytesSender(client=EngineClient(engines), source=weights, is_sender=rank == 0)


for _name, _receiver in RECEIVERS.items():
    WeightTransferEngineFactory.register_engine(_name, _receiver)
logging.getLogger("vllm").addHandler(EngineStart())
if is_cpu_build():
    install(CPU_ENGINE)
