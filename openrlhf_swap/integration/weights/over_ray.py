"""Weights on a CPU: bytes over Ray."""

from dataclasses import asdict, dataclass
from operator import itemgetter
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors, unpack_tensor

from openrlhf_swap.integration.weights.receiving import InPlaceReceiver

MESSAGE_BYTES = 32 * 2**20  # Ray's store has to hold some


@dataclass
class Message(base.WeightTransferUpdateInfo):
    """Some weights, one after the other in the bytes of `content`."""

    names: list[str]
    shapes: list[list[int]]
    dtype_names: list[str]
    sizes: list[int]
    content: bytes


class BytesSender(base.TrainerWeightTransferEngine):
    """Sends messages one after the other; the other ranks only gather with rank 0."""

    @classmethod
    def trainer_init(cls, *_: Any, **__: Any) -> Any:
        """Does nothing: vLLM's base class asks for it, but here nobody has to meet."""

    def send_weights(self) -> None:
        """Send all weights to all engines."""
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        self.client.start_weight_update()
        weights = iter(self.source)
        while True:
            chunk = pack_tensors(weights, itemgetter(1), MESSAGE_BYTES)
            if not chunk:
                break
            message = Message(
                names=chunk.names,
                shapes=chunk.shapes,
                dtype_names=[str(dtype).removeprefix("torch.") for dtype in chunk.dtypes],
                sizes=chunk.tensor_sizes,
                content=chunk.packed_tensor.numpy().tobytes(),
            )
            self.client.update_weights(asdict(message))
        self.client.finish_weight_update()


class BytesReceiver(InPlaceReceiver, base.WeightTransferEngine[Any, Any]):
    """Takes the weights out of the messages, in an engine's worker."""

    update_info_cls: ClassVar[Any] = Message

    def init_transfer_engine(self, init_info: Any) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Overrides the method of vLLM's base class, which then waits for a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        """Load the weights of a message."""
        packed = torch.frombuffer(bytearray(update_info.content), dtype=torch.uint8)
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        layout = (update_info.names, update_info.shapes, dtypes, update_info.sizes)
        self.model.load_weights(unpack_tensor(packed, *layout))

    def shutdown(self) -> None: ...
