"""The two ends of every weight transfer: calls of all engines, and loading in place."""

from typing import Any

import ray
import torch
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta


class EngineClient:
    """The methods of vLLM's `VLLMWeightSyncClient`, called on all engines over Ray."""

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


class InPlaceReceiver:
    """Loads weights into the tensors with which the model runs.

    vLLM's own receivers load into new tensors, and exchange old for new ones at the end. The
    exchange silently leaves out what a model's code has copied by itself, as gpt-oss does with its
    experts and sinks.
    """

    model: Any
    model_config: Any
    device: torch.device

    def start_weight_update(self) -> None:
        """Give layers with packed weights their plain ones back.

        On a CPU, vLLM drops the plain weights. A later load would fail, or be ignored silently for
        the output head. An embedding keeps them, because the head may be the embedding.
        """
        for layer in self._packed_layers():
            if not isinstance(layer, VocabParallelEmbedding):
                info = get_layerwise_info(layer)
                restore_layer_on_meta(layer, info)
                materialize_layer(layer, info)

    def finish_weight_update(self) -> None:
        """Make anew what vLLM makes of weights: a latent attention's products, packed weights."""
        for layer in self.model.modules():
            if isinstance(layer, MLAAttention):
                layer.process_weights_after_loading(self.model_config.dtype)
        for layer in self._packed_layers():
            if isinstance(layer, RoutedExperts):
                # While there is a kernel, vLLM 0.29.0 does not pack again.
                layer.quant_method.moe_kernel = None
            layer.quant_method.process_weights_after_loading(layer)

    def _packed_layers(self) -> list[Any]:
        """On a CPU, the layers whose weights vLLM packs for the processor's instructions."""
        if self.device.type != "cpu":
            return []
        return [layer for layer in self.model.modules() if _is_packed(layer)]


def _is_packed(layer: Any) -> bool:
    """Whether a layer is one of experts, or vLLM has marked it as linear or a convolution."""
    is_linear = hasattr(layer, "cpu_linear")
    is_convolution = hasattr(layer, "_cpu_unpacked_conv_weight")
    return isinstance(layer, RoutedExperts) or is_linear or is_convolution
