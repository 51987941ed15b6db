"""vLLM's side of a CPU run: a rollout actor and a worker whose weights can be replaced."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import materialize_layer, restore_layer_on_meta

from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor
from openrlhf_swap.integration.generation.rollout_worker import SwapWorker


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


class CpuRolloutActor(SwapRolloutActor):
    """The rollout actor with `CpuWorker` in vLLM."""

    worker = CpuWorker

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        # On a CPU, vLLM cannot revoke a seeded token sampled for a partly read prompt, so prompts are read whole.
        await super().__init__(*args, **{**kwargs, "enable_chunked_prefill": False})
