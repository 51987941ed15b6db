"""vLLM's side of a CPU run: a rollout actor and a worker whose weights can be replaced."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ray.vllm_worker_wrap import WorkerWrap
from vllm.model_executor.layers import utils as vllm_layers

from openrlhf_swap.integration.rollout_actor import SwapRolloutActor


def _keep_plain_weights(layer: torch.nn.Module, remove_weight: bool) -> None:
    """Leave a linear layer's weight as it is.

    vLLM packs linear weights for the CPU at load time. A later `load_weights` then fails or, for the output head, is
    silently ignored: rollouts would keep the old policy.
    """
    vars(layer)["cpu_linear"] = torch.nn.functional.linear


vllm_layers.dispatch_cpu_unquantized_gemm = _keep_plain_weights


class CpuWorker(WorkerWrap):
    """vLLM worker extension; vLLM imports it by name in the process that holds the model."""

    def update_weight(self, name: str, dtype: torch.dtype, shape: torch.Size, empty_cache: bool = False) -> None:
        """Receive one parameter from the trainer and load it."""
        if dtype != self.model_config.dtype:
            raise TypeError(f"weight {name} is {dtype}, but vLLM runs in {self.model_config.dtype}")
        weight = torch.empty(shape, dtype=dtype)
        self._model_update_group.broadcast(weight, src=0)
        self.model_runner.model.load_weights(weights=[(name, weight)])


class CpuRolloutActor(SwapRolloutActor):
    """The rollout actor with `CpuWorker` in vLLM."""

    worker: type = CpuWorker

    async def __init__(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[misc]  # Ray awaits it
        kwargs["worker_extension_cls"] = f"{self.worker.__module__}.{self.worker.__qualname__}"
        await super().__init__(*args, **kwargs)
