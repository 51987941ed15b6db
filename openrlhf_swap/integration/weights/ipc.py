"""Weights to an engine on the policy's own GPU: vLLM's transfer by CUDA IPC handles."""

from vllm.distributed.weight_transfer import ipc_engine

from openrlhf_swap.integration.weights.receiving import EngineClient, InPlaceReceiver
from openrlhf_swap.integration.weights.source import PIECE_BYTES, PolicyWeights


def ipc_sender(
    client: EngineClient,
    source: PolicyWeights,
    rank: int,
) -> ipc_engine.IPCTrainerWeightTransferEngine:
    """Make vLLM's own sender, with a buffer that takes the largest weight."""
    size = max(PIECE_BYTES, source.largest)
    info = ipc_engine.IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=size)
    return ipc_engine.IPCTrainerWeightTransferEngine.trainer_init(
        info, client=client, source=source
    )


class IpcReceiver(InPlaceReceiver, ipc_engine.IPCWeightTransferEngine):
    """Takes the weights from the policy's memory on the same GPU."""

    def finish_weight_update(self) -> None:
        """Overrides vLLM's: the policy gets its memory back as well."""
        super().finish_weight_update()
        self._packed_importer.close()
