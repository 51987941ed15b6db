"""The policy's weights on their way to vLLM: by vLLM's own weight transfer, many in one piece.

On a GPU that policy and engine share, pieces travel as CUDA IPC handles; to other GPUs over NCCL;
on a CPU as bytes over Ray. vLLM's worker imports this module by the name of its extension, and so
knows our ways.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import ray
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from vllm.distributed.device_communicators.pynccl import PyNcclCommunicator
from vllm.distributed.device_communicators.pynccl_wrapper import NCCLLibrary, ncclUniqueId
from vllm.distributed.utils import StatelessProcessGroup
from vllm.distributed.weight_transfer import (
    WeightTransferEngineFactory,
    base,
    ipc_engine,
    nccl_engine,
)
from vllm.distributed.weight_transfer.packed_tensor import pack_tensors, unpack_tensor
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta

from openrlhf_swap.packages import is_cpu_build

PIECE_BYTES = 256 * 2**20  # a larger tensor is a piece of its own
CPU_PIECE_BYTES = 32 * 2**20  # Ray's store has to hold some
BUFFERS = 2  # of a piece each: one is filled while the other is on its way


def way_of(args: SimpleNamespace) -> str:
    """How weights travel in a run: the name under which the receiver is registered below."""
    if args.vllm.sync_backend == "nccl" and args.train.colocate_all and not args.train.async_enable:
        return "swap_ipc"
    return "swap_bytes" if is_cpu_build() else "swap_nccl"


def engine_arguments(args: SimpleNamespace) -> dict[str, Any]:
    extension = f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}"
    return {"worker_extension_cls": extension, "weight_transfer_config": {"backend": way_of(args)}}


class PolicyWeights(base.WeightSource):
    """The policy's weights, by name and shape as `save_pretrained` writes them; transformers joins
    experts, for one.

    Under ZeRO-3 the ranks gather them together, a piece at a time, so all of them have to go
    through the weights.
    """

    def __init__(self, model: PreTrainedModel, weights: Iterable[tuple[str, nn.Parameter]]) -> None:
        self._weights = list(weights)
        # What a prefix was in some checkpoint is of no concern: vLLM knows the model's own names.
        conversions = get_model_conversion_mapping(model, add_legacy=False)
        self._conversions = [entry for entry in conversions if not isinstance(entry, PrefixChange)]
        self._model = copy.copy(model)  # which has the policy's parameters
        vars(self._model)["_weight_conversions"] = self._conversions

    @property
    def largest(self) -> int:
        return max(meta.dtype.itemsize * torch.Size(meta.shape).numel() for meta in self.metadata())

    def metadata(self) -> list[base.ParamMeta]:
        return [
            base.ParamMeta(name, tensor.dtype, tuple(tensor.shape))
            for piece in self._pieces()
            for name, tensor in self._convert(
                (name, torch.empty(_shape(weight), dtype=weight.dtype, device="meta"))
                for name, weight in piece
            )
        ]

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        import deepspeed

        for piece in self._pieces():
            with deepspeed.zero.GatheredParameters(
                [weight for _, weight in piece]
            ):  # does nothing for whole ones
                yield from self._convert((name, weight.detach()) for name, weight in piece)

    def _pieces(self) -> Iterator[list[tuple[str, nn.Parameter]]]:
        piece: list[tuple[str, nn.Parameter]] = []
        size = 0
        for name, weight in self._weights:
            added = _shape(weight).numel() * weight.dtype.itemsize
            if piece and size + added > PIECE_BYTES:
                yield piece
                piece, size = [], 0
            piece.append((name, weight))
            size += added
        yield piece

    def _convert(self, weights: Iterable[tuple[str, Tensor]]) -> Iterable[tuple[str, Tensor]]:
        return (
            revert_weight_conversion(self._model, dict(weights)).items()
            if self._conversions
            else weights
        )


def _shape(weight: Tensor) -> torch.Size:
    """The whole shape; under ZeRO-3 a rank holds a part."""
    return torch.Size(getattr(weight, "ds_shape", weight.shape))


class EngineClient:
    """vLLM's methods of a weight transfer (its `VLLMWeightSyncClient`), called on all engines over
    Ray.
    """

    def __init__(self, engines: list[Any]) -> None:
        self.engines = engines

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", init_info)

    def start_weight_update(self) -> None:
        self._call("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._call("update_weights", update_info)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update")

    def _call(self, method: str, *info: Any) -> None:
        stored = [ray.put(part) for part in info]
        ray.get([engine.transfer_weights.remote(method, *stored) for engine in self.engines])


def make_sender(
    args: SimpleNamespace, engines: list[Any], weights: PolicyWeights, rank: int
) -> base.TrainerWeightTransferEngine:
    """What sends the weights by `send_weights()`; made, and called, on all ranks of the policy at
    the same time.
    """
    client, way = EngineClient(engines), way_of(args)
    if way == "swap_ipc":
        size = max(PIECE_BYTES, weights.largest)
        info = ipc_engine.IPCTrainerInitInfo(rank=rank, packed=True, packed_buffer_size_bytes=size)
        return ipc_engine.IPCTrainerWeightTransferEngine.trainer_init(
            info, client=client, source=weights
        )
    if way == "swap_nccl":
        return NcclSender.connected(client, weights, rank, args.vllm.tensor_parallel_size)
    return BytesSender(client=client, source=weights, is_sender=rank == 0)


class _InPlace:
    """Loads weights into the tensors that the model runs with, then derives from them what vLLM
    does.

    vLLM's own receivers put other tensors there and replace them afterwards, which silently leaves
    out what a model's code copies by itself (gpt-oss's experts and sinks).
    """

    model: Any
    model_config: Any
    device: torch.device

    def start_weight_update(self) -> None:
        """Give layers with packed weights their plain ones back.

        On a CPU, vLLM drops the plain ones: a later load would fail or, for the output head, be
        ignored silently.
        """
        for layer in self._packed_layers():
            if not isinstance(
                layer, VocabParallelEmbedding
            ):  # which keeps them: it may be the embedding
                info = get_layerwise_info(layer)
                restore_layer_on_meta(layer, info)
                materialize_layer(layer, info)

    def finish_weight_update(self) -> None:
        for layer in self.model.modules():
            if isinstance(layer, MLAAttention):
                layer.process_weights_after_loading(self.model_config.dtype)
        for layer in self._packed_layers():
            if isinstance(layer, RoutedExperts):
                layer.quant_method.moe_kernel = (
                    None  # while there is a kernel, vLLM 0.29.0 does not pack again
                )
            layer.quant_method.process_weights_after_loading(layer)

    def _packed_layers(self) -> list[Any]:
        """Linear layers, experts, and the convolutions of recurrent layers where the CPU has
        instructions for them.
        """
        marks = ("cpu_linear", "_cpu_unpacked_conv_weight")
        layers = self.model.modules() if self.device.type == "cpu" else ()
        return [
            x
            for x in layers
            if isinstance(x, RoutedExperts) or any(hasattr(x, mark) for mark in marks)
        ]


class IpcReceiver(_InPlace, ipc_engine.IPCWeightTransferEngine):
    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        self._packed_importer.close()  # so that the policy gets the memory back


# NCCL. The id with which its ranks find each other goes over Ray, which asks for a token. In vLLM's
# own rendezvous it is a pickle in a store that every user of the machine may write.


@dataclass
class NcclInitInfo(base.WeightTransferInitInfo):
    unique_id: list[int]
    first_rank: int
    world_size: int


class _KnownId(StatelessProcessGroup):
    """A group without a store, of which vLLM's communicator asks nothing but NCCL's id."""

    def __init__(self, rank: int, world_size: int, unique_id: list[int]) -> None:
        self.rank, self.world_size, self._unique_id = rank, world_size, unique_id

    def broadcast_obj(self, obj: Any | None, src: int) -> ncclUniqueId:
        known = ncclUniqueId()
        for place, byte in enumerate(self._unique_id):
            known.internal[place] = byte
        return known


def _communicator(rank: int, world_size: int, unique_id: list[int]) -> PyNcclCommunicator:
    device = torch.accelerator.current_device_index()
    return PyNcclCommunicator(_KnownId(rank, world_size, unique_id), device=device)


class NcclSender(nccl_engine.NCCLTrainerWeightTransferEngine):
    """vLLM's sender in a group whose id the engines got over Ray."""

    @classmethod
    def connected(
        cls, client: EngineClient, source: PolicyWeights, rank: int, workers: int
    ) -> NcclSender:
        """Connect rank 0 of the policy with all workers, of which each engine has as many as given."""
        sizes = {"packed_buffer_size_bytes": PIECE_BYTES, "packed_num_buffers": BUFFERS}
        sender = cls(client=client, source=source, is_sender=rank == 0, packed=True, **sizes)
        if rank:
            return sender
        unique_id = list(NCCLLibrary().ncclGetUniqueId().internal)
        size = 1 + workers * len(client.engines)
        joining = [
            engine.transfer_weights.remote(
                "init_weight_transfer_engine",
                asdict(NcclInitInfo(unique_id, 1 + workers * number, size)),
            )
            for number, engine in enumerate(client.engines)
        ]
        sender.model_update_group = _communicator(0, size, unique_id)  # for which the workers wait
        ray.get(joining)
        return sender


class NcclReceiver(_InPlace, nccl_engine.NCCLWeightTransferEngine):
    init_info_cls: ClassVar[Any] = NcclInitInfo

    def init_transfer_engine(self, init_info: Any) -> None:
        self.packed, self.packed_buffer_size_bytes, self.packed_num_buffers = (
            True,
            PIECE_BYTES,
            BUFFERS,
        )
        rank = init_info.first_rank + self.parallel_config.rank
        self.model_update_group = _communicator(rank, init_info.world_size, init_info.unique_id)


# Bytes over Ray, on a CPU.


@dataclass
class Piece(base.WeightTransferUpdateInfo):
    names: list[str]
    shapes: list[list[int]]
    dtype_names: list[str]
    sizes: list[int]
    content: bytes


class BytesSender(base.TrainerWeightTransferEngine):
    """Sends pieces one after the other; the other ranks only gather with rank 0."""

    @classmethod
    def trainer_init(cls, *_: Any, **__: Any) -> Any:
        """Does nothing: vLLM's base class asks for it, but bytes over Ray need no meeting of sender
        and receivers.
        """

    def send_weights(self) -> None:
        assert self.source is not None
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        self.client.start_weight_update()
        weights = iter(self.source)
        while chunk := pack_tensors(weights, lambda item: item[1], CPU_PIECE_BYTES):
            dtypes = [str(dtype).removeprefix("torch.") for dtype in chunk.dtypes]
            content = chunk.packed_tensor.numpy().tobytes()
            self.client.update_weights(
                asdict(Piece(chunk.names, chunk.shapes, dtypes, chunk.tensor_sizes, content))
            )
        self.client.finish_weight_update()


class BytesReceiver(_InPlace, base.WeightTransferEngine[Any, Any]):
    update_info_cls: ClassVar[Any] = Piece

    def init_transfer_engine(self, init_info: Any) -> None: ...

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Overrides vLLM's, which then waits for a GPU."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Any) -> None:
        packed = torch.frombuffer(bytearray(update_info.content), dtype=torch.uint8)
        dtypes = [getattr(torch, name) for name in update_info.dtype_names]
        parts = unpack_tensor(
            packed, update_info.names, update_info.shapes, dtypes, update_info.sizes
        )
        self.model.load_weights(parts)

    def shutdown(self) -> None: ...


class WorkerExtension:
    """The extension of vLLM's worker, which adds nothing: its name leads the worker's process to
    this module.
    """


class _Phases(logging.Handler):
    """Says on the console what the engine whose process this is does next, at messages of vLLM's."""

    # By the beginning of a message. Of two with one meaning, one is of the older model runner or of
    # a first start.
    MESSAGES: ClassVar[dict[str, str]] = {
        "Starting to load model": "loads the weights",
        "Loading model from scratch": "loads the weights",
        "Using cache directory": "compiles the model, or loads what was compiled before",
        "Directly load AOT compilation": "loads the model that was compiled before",
        "GPU KV cache size": "warms up, and captures CUDA graphs unless it runs eagerly",
    }

    def emit(self, record: logging.LogRecord) -> None:
        for message, phase in self.MESSAGES.items():
            if str(record.msg).startswith(message):
                print(f"[swap] vLLM: it {phase}", flush=True)


for _name, _receiver in (("ipc", IpcReceiver), ("nccl", NcclReceiver), ("bytes", BytesReceiver)):
    WeightTransferEngineFactory.register_engine(f"swap_{_name}", _receiver)
logging.getLogger("vllm").addHandler(_Phases())
