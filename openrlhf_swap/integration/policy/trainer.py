"""The policy's updates, and sending its weights to vLLM."""

from __future__ import annotations

from typing import Any

import ray
import torch
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

from openrlhf_swap.integration.policy.lora import merged_into_weights


class SwapPolicyTrainer(ActorPPOTrainer):
    """OpenRLHF's trainer inside the policy's actor."""

    def training_step(self, experience: Any, kl_ctl: float, step: int, *args: Any) -> dict[str, Any]:
        """Overrides OpenRLHF's: also tells DeepSpeed which micro-batch is the last of an update.

        With dynamic batches OpenRLHF configures updates of one micro-batch and calls `step` after several. DeepSpeed
        0.19.6 then takes each of them for an update's last, and under ZeRO-1 and 2 forgets the gradients before it.
        """
        if self.args.train.dynamic_batch_enable:
            is_last = bool(self.replay_buffer.dynamic_optimizer_step[step])
            self.actor.model.set_gradient_accumulation_boundary(is_last)
        return super().training_step(experience, kl_ctl, step, *args)

    def broadcast_to_vllm(self) -> None:
        """Overrides OpenRLHF's: LoRA adapters are sent as a part of the weights."""
        with merged_into_weights(self.actor.model.module):
            super().broadcast_to_vllm()
        # OpenRLHF's own call comes while the merged weights are in use. vLLM wakes on the same GPU next.
        torch.cuda.empty_cache()

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Overrides OpenRLHF's, which would silently wait forever for an engine that could not start."""
        ray.get([engine.__ray_ready__.remote() for engine in self.vllm_engines])
        super()._init_vllm_sync_group(backend)
