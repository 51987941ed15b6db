"""Weights to engines on other GPUs: vLLM's own transfer over NCCL, for several engines."""

from typing import Any

import ray
from vllm.distributed.weight_transfer import nccl_engine
from vllm.utils.network_utils import get_open_port

from openrlhf_swap.integration.weights.receiving import EngineClient, InPlaceReceiver
from openrlhf_swap.integration.weights.source import PIECE_BYTES, PolicyWeights

BUFFERS = 2  # of a piece each: one is filled while the other is on its way


class NcclClient(EngineClient):
    """Tells each engine the rank of its first worker; vLLM's sender knows one engine only."""

    def __init__(self, engines: list[Any], workers: int) -> None:
        """Each engine has so many workers."""
        super().__init__(engines)
        self.workers = workers

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        joining = []
        first = init_info["rank_offset"]
        for engine in self.engines:
            info = init_info | {"rank_offset": first}
            joining.append(engine.transfer_weights.remote("init_weight_transfer_engine", info))
            first += self.workers
        ray.get(joining)


def nccl_sender(
    client: NcclClient,
    source: PolicyWeights,
    rank: int,
) -> nccl_engine.NCCLTrainerWeightTransferEngine:
    """Connect rank 0 of the policy with all workers of all engines.

    They find each other by vLLM's store on the machine of rank 0, which reads pickles and asks for
    no password.
    """
    info = nccl_engine.NCCLTrainerInitInfo(
        rank=rank,
        master_address=ray.util.get_node_ip_address(),
        master_port=get_open_port(),
        world_size=1 + client.workers * len(client.engines),
        packed=True,
        packed_buffer_size_bytes=PIECE_BYTES,
        packed_num_buffers=BUFFERS,
    )
    return nccl_engine.NCCLTrainerWeightTransferEngine.trainer_init(
        info, client=client, source=source
    )


class NcclReceiver(InPlaceReceiver, nccl_engine.NCCLWeightTransferEngine):
    """vLLM's receiver, which loads in place."""
