"""Weights to engines on other GPUs, over NCCL.

The id with which the ranks of NCCL find each other goes over Ray, which asks for a token. In vLLM's
own rendezvous it is a pickle in a store that every user of the machine may write.
"""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import ray
import torch
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary, ncclUniqueId
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import base, nccl_engine

from openrlhf_swap.integration.weights.receiving import EngineClient, InPlaceReceiver
from openrlhf_swap.integration.weights.source import PIECE_BYTES, PolicyWeights

BUFFERS = 2  # of a piece each: one is filled while the other is on its way


@dataclass
class NcclInitInfo(base.WeightTransferInitInfo):
    unique_id: list[int]
    first_rank: int
    world_size: int


class _KnownId(StatelessProcessGroup):
    """A group without a store: vLLM's communicator asks it for NCCL's id, and nothing else."""

    def __init__(
        self,
        rank: int,
        world_size: int,
        unique_id: list[int],
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._unique_id = unique_id

    def broadcast_obj(self, obj: Any | None, src: int) -> ncclUniqueId:
        known = ncclUniqueId()
        for place, byte in enumerate(self._unique_id):
            known.internal[place] = byte
        return known


def _communicator(
    rank: int,
    world_size: int,
    unique_id: list[int],
) -> PyNcclCommunicator:
    group = _KnownId(rank, world_size, unique_id)
    return PyNcclCommunicator(group, device=torch.accelerator.current_device_index())


def nccl_sender(
    client: EngineClient,
    source: PolicyWeights,
    rank: int,
    workers: int,
) -> nccl_engine.NCCLTrainerWeightTransferEngine:
    """Connect rank 0 of the policy with all workers, of which each engine has as many as given."""
    sender = nccl_engine.NCCLTrainerWeightTransferEngine(
        client=client,
        source=source,
        is_sender=rank == 0,
        packed=True,
        packed_buffer_size_bytes=PIECE_BYTES,
        packed_num_buffers=BUFFERS,
    )
    if rank != 0:
        return sender
    unique_id = list(NCCLLibrary().ncclGetUniqueId().internal)
    world_size = 1 + workers * len(client.engines)
    joining = []
    for number, engine in enumerate(client.engines):
        info = asdict(NcclInitInfo(unique_id, 1 + workers * number, world_size))
        joining.append(engine.transfer_weights.remote("init_weight_transfer_engine", info))
    sender.model_update_group = _communicator(0, world_size, unique_id)  # the workers wait for it
    ray.get(joining)
    return sender


class NcclReceiver(InPlaceReceiver, nccl_engine.NCCLWeightTransferEngine):
    init_info_cls: ClassVar[Any] = NcclInitInfo

    def init_transfer_engine(self, init_info: Any) -> None:
        self.packed = True
        self.packed_buffer_size_bytes = PIECE_BYTES
        self.packed_num_buffers = BUFFERS
        rank = init_info.first_rank + self.parallel_config.rank
        self.model_update_group = _communicator(rank, init_info.world_size, init_info.unique_id)
