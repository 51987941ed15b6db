"""vLLM's side of the weight sync: weights as a checkpoint has them, and what vLLM derives from them.

The policy's weights travel under the names, and in the shapes, that transformers runs them with. vLLM loads them as
checkpoints have them, and the two differ: transformers joins the weights of all experts, for one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, revert_weight_conversion
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta

from openrlhf_swap.packages.replace import replaced

_StockWorker: Any = WorkerWrap
Weights = Iterable[tuple[str, Tensor]]


def model_without_weights(path: str, trust_remote_code: bool) -> PreTrainedModel:
    """The model that the trainer loads from `path`, on the meta device, ready for `convert_to_checkpoint`."""
    config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
    # OpenRLHF's rule.
    auto: Any = AutoModelForImageTextToText if hasattr(config, "vision_config") else AutoModelForCausalLM
    with torch.device("meta"):
        model: Any = auto.from_config(config, trust_remote_code=trust_remote_code)
    conversions = get_model_conversion_mapping(model, add_legacy=False)
    # What a prefix was in some checkpoint is of no concern: vLLM knows the model's own names.
    model._weight_conversions = [entry for entry in conversions if not isinstance(entry, PrefixChange)] or None
    made: PreTrainedModel = model
    return made


def convert_to_checkpoint(model: PreTrainedModel, weights: Weights) -> list[tuple[str, Tensor]]:
    """Weights of a model by their names in it -> the same, by name and shape as `save_pretrained` writes them."""
    if getattr(model, "_weight_conversions", None) is None:
        return list(weights)
    return list(revert_weight_conversion(model, dict(weights)).items())


class SwapWorker(_StockWorker):
    """OpenRLHF's vLLM worker extension; vLLM imports it by name in the process that holds the model."""

    _sent: PreTrainedModel | None = None
    _is_updating = False

    def update_weight(self, name: str, dtype: torch.dtype, shape: torch.Size, empty_cache: bool = False) -> None:
        """Overrides OpenRLHF's: loads the parameter by its checkpoint name; `empty_cache` comes with the last one."""
        with self._receiving(is_last=empty_cache):
            super().update_weight(name, dtype, shape, empty_cache)

    def update_weight_cuda_ipc(
        self, name: str, dtype: torch.dtype, shape: torch.Size, ipc_handles: Any = None, empty_cache: bool = False
    ) -> None:
        """Overrides OpenRLHF's, in the same way; the parameter is in the memory of the same GPU."""
        with self._receiving(is_last=empty_cache):
            super().update_weight_cuda_ipc(name, dtype, shape, ipc_handles, empty_cache)

    @contextmanager
    def _receiving(self, is_last: bool) -> Iterator[None]:
        model, settings = self.model_runner.model, self.model_config
        if self._sent is None:
            self._sent = model_without_weights(settings.model, settings.trust_remote_code)
        sent, load = self._sent, model.load_weights
        with set_current_vllm_config(self.vllm_config):
            if not self._is_updating:
                self._begin_update(model)
                self._is_updating = True
            with replaced(model, "load_weights", lambda weights: load(convert_to_checkpoint(sent, weights)), "vllm"):
                yield
            if is_last:
                self._end_update(model)
                self._is_updating = False

    def _begin_update(self, model: torch.nn.Module) -> None:
        """Before the first weight of an update."""

    def _end_update(self, model: torch.nn.Module) -> None:
        """After the last weight of an update: redo what vLLM derives from weights, as for latent attention."""
        for layer in model.modules():
            if isinstance(layer, MLAAttention):
                layer.process_weights_after_loading(self.model_config.dtype)


class CpuWorker(SwapWorker):
    """The worker extension without CUDA."""

    def update_weight(self, name: str, dtype: torch.dtype, shape: torch.Size, empty_cache: bool = False) -> None:
        """Receive one parameter from the trainer and load it."""
        if dtype != self.model_config.dtype:
            raise TypeError(f"weight {name} is {dtype}, but vLLM runs in {self.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        with self._receiving(is_last=empty_cache):
            self.model_runner.model.load_weights(weights=[(name, weight)])

    def _begin_update(self, model: torch.nn.Module) -> None:
        """Give layers with packed weights their plain parameters back.

        vLLM packs weights for the CPU when it loads the model and drops the plain ones: a later load would fail or,
        for the output head, be ignored silently, and rollouts would keep using the old policy.
        """
        for layer in _packed_layers(model):
            if not isinstance(layer, VocabParallelEmbedding):  # which keeps them: it may be the embedding
                info = get_layerwise_info(layer)
                restore_layer_on_meta(layer, info)
                materialize_layer(layer, info)

    def _end_update(self, model: torch.nn.Module) -> None:
        super()._end_update(model)
        for layer in _packed_layers(model):
            if isinstance(layer, RoutedExperts):
                layer.quant_method.moe_kernel = None  # while there is a kernel, vLLM 0.29.0 does not pack again
            layer.quant_method.process_weights_after_loading(layer)


def _packed_layers(model: torch.nn.Module) -> list[Any]:
    """Linear layers, experts, and the convolutions of recurrent layers where the CPU has instructions for them."""
    return [
        layer
        for layer in model.modules()
        if isinstance(layer, RoutedExperts)
        or hasattr(layer, "cpu_linear")
        or hasattr(layer, "_cpu_unpacked_conv_weight")
    ]
