"""The policy's weights on their way to vLLM: by vLLM's own weight transfer, many in one piece.

To an engine on the policy's own GPU, pieces travel as CUDA IPC handles (`weights_ipc`); to other
GPUs over NCCL (`weights_nccl`); on a CPU as bytes over Ray (`weights_bytes`).

Importing this module makes a process an engine's: vLLM knows our receivers afterwards, and its
start is told on the console. vLLM's worker does so by the name of its extension.
"""

import logging
from types import SimpleNamespace
from typing import Any

from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine

from openrlhf_swap.integration.weights.engine_phases import EnginePhases
from openrlhf_swap.integration.weights.ipc import IpcReceiver, ipc_sender
from openrlhf_swap.integration.weights.nccl import NcclReceiver, nccl_sender
from openrlhf_swap.integration.weights.over_ray import BytesReceiver, BytesSender
from openrlhf_swap.integration.weights.receiving import EngineClient
from openrlhf_swap.integration.weights.source import PolicyWeights
from openrlhf_swap.integration.weights.way import engine_arguments, way_of

__all__ = ["BytesSender", "PolicyWeights", "WorkerExtension", "engine_arguments", "make_sender"]

RECEIVERS = {"swap_ipc": IpcReceiver, "swap_nccl": NcclReceiver, "swap_bytes": BytesReceiver}


class WorkerExtension:
    """The extension of vLLM's worker: it adds nothing, its name leads the worker to this module."""


def make_sender(
    args: SimpleNamespace,
    engines: list[Any],
    weights: PolicyWeights,
    rank: int,
) -> TrainerWeightTransferEngine:
    """What sends the weights by `send_weights()`.

    All ranks of the policy make it at the same time, and call it at the same time.
    """
    client = EngineClient(engines)
    way = way_of(args)
    if way == "swap_ipc":
        return ipc_sender(client, weights, rank)
    if way == "swap_nccl":
        return nccl_sender(client, weights, rank, args.vllm.tensor_parallel_size)
    return BytesSender(client=client, source=weights, is_sender=rank == 0)


for _name, _receiver in RECEIVERS.items():
    WeightTransferEngineFactory.register_engine(_name, _receiver)
logging.getLogger("vllm").addHandler(EnginePhases())
