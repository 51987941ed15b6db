"""The policy's updates, and sending its weights to vLLM."""

from typing import Any

import ray
import torch
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync

from openrlhf_swap.integration.policy.lora import merged_into_weights, named_weights, without_adapters
from openrlhf_swap.integration.runtime.weights import PolicyWeights, make_sender


class SwapPolicyTrainer(ActorPPOTrainer):
    """OpenRLHF's trainer inside the policy's actor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.vllm_engines:
            model = self.actor.model.module
            weights = PolicyWeights(without_adapters(model), named_weights(model))
            self._sender = make_sender(self.args, self.vllm_engines, weights, torch.distributed.get_rank())

    def training_step(self, experience: Any, kl_ctl: float, step: int, *args: Any) -> dict[str, Any]:
        """Overrides OpenRLHF's: also tells DeepSpeed which micro-batch is the last of an update.

        With dynamic batches OpenRLHF configures updates of one micro-batch and calls `step` after several. DeepSpeed
        0.19.6 then takes each of them for an update's last, and under ZeRO-1 and 2 forgets the gradients before it.
        """
        if self.args.train.dynamic_batch_enable:
            is_last = bool(self.replay_buffer.dynamic_optimizer_step[step])
            self.actor.model.set_gradient_accumulation_boundary(is_last)
        return super().training_step(experience, kl_ctl, step, *args)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Overrides OpenRLHF's, which connects one rank in its own way."""

    def broadcast_to_vllm(self) -> None:
        """Overrides OpenRLHF's, which sends one parameter at a time; LoRA adapters travel as a part of the weights."""
        torch.cuda.empty_cache()
        with merged_into_weights(self.actor.model.module):
            self._sender.send_weights()
        if self.args.vllm.enable_prefix_caching and torch.distributed.get_rank() == 0:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        torch.cuda.empty_cache()  # vLLM wakes on the same GPU next
        torch_dist_barrier_and_cuda_sync()
