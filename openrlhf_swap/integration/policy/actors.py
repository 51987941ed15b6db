"""OpenRLHF's actors of the policy and the reference model, which prepare their processes, and the
policy's trainer.
"""

import resource
from collections.abc import Sequence
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from torch import Tensor

from openrlhf_swap.integration.patches import POLICY_LOADS, REFERENCE_LOADS, installed, undecorated
from openrlhf_swap.integration.policy import weights
from openrlhf_swap.integration.policy.checkpoints import PolicyCheckpoints
from openrlhf_swap.integration.policy.scorer import PolicyScorer, ScoredForward
from openrlhf_swap.integration.runtime.weights import PolicyWeights, make_sender
from openrlhf_swap.scoring.answer import ScoreRequest

_StockPolicyActor: Any = undecorated(PolicyModelActor)
_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class IntrinsicRewardActor(_StockPolicyActor):
    """The policy as its own reward model: it also says how likely the reference answer becomes
    after each step.
    """

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Overrides OpenRLHF's: also restores the random state, and chooses the scoring backend."""
        if self._rank == 0:
            print("[swap] DeepSpeed: the policy loads its weights", flush=True)
        self._checkpoints = PolicyCheckpoints(strategy)
        with installed(POLICY_LOADS), self._checkpoints.explained_loading():
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.ema_model is not None:
            weights.begin_average(self.ema_model, strategy.is_rank_0())
        if self.checkpoint_states:
            self._checkpoints.load_beside_the_model(self.ema_model)
        if reason := self.actor.hold_logits_of(strategy.args.swap_run.logits_chunk):
            strategy.print(
                f"[swap] warning: an update holds the logits of all of its tokens, because {reason}"
            )
        self._scorer = PolicyScorer(self.actor, strategy)

    def forward(
        self,
        requests: Sequence[ScoreRequest] | None = None,
        signals: Sequence[str] = (),
        **batch: Any,
    ) -> Tensor | ScoredForward:
        """Overrides OpenRLHF's: also reads signals of the steps, as `PolicyScorer.forward` does."""
        if requests is None:
            return super().forward(**batch)
        batch.pop("mm_train_inputs_list", None)  # for models that see, which are refused
        return self._scorer.forward(**batch, requests=requests, signals=signals)

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """Overrides OpenRLHF's: also counts updates that DeepSpeed skipped, and reports the ranks'
        peak memory.
        """
        skipped = self.actor.model.skipped_steps
        status = super().fit(kl_ctl)
        status["swap/skipped_updates"] = self.actor.model.skipped_steps - skipped
        if torch.cuda.is_available():
            peak = torch.cuda.max_memory_allocated()  # since the last step
            torch.cuda.reset_peak_memory_stats()
        else:
            peak = (
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
            )  # main memory's since the start
        status["memory/policy_peak_gib"] = self.strategy.all_reduce(peak / 2**30, op="max")
        return status

    def save_model(self) -> None:
        with weights.rounded_average(self.ema_model):
            super().save_model()

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """Overrides OpenRLHF's: also saves random state and moving average; complete or not at all."""
        parts = not self.disable_ds_ckpt, self.save_hf_ckpt
        with (
            self._checkpoints.writing(tag, self.ema_model, *parts) as name,
            weights.rounded_average(self.ema_model),
        ):
            super().save_checkpoint(name, *args, **kwargs)


class SwapReferenceActor(_StockReferenceActor):
    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        with installed(REFERENCE_LOADS):
            super().init_model_from_pretrained(strategy, pretrain)
        self.model.hold_logits_of(strategy.args.swap_run.logits_chunk)


class SwapPolicyTrainer(ActorPPOTrainer):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.vllm_engines:
            model = self.actor.model.module
            source = PolicyWeights(weights.without_adapters(model), weights.named_weights(model))
            self._sender = make_sender(
                self.args, self.vllm_engines, source, torch.distributed.get_rank()
            )

    def training_step(
        self, experience: Any, kl_ctl: float, step: int, *args: Any
    ) -> dict[str, Any]:
        """Overrides OpenRLHF's: also tells DeepSpeed which micro-batch is the last of an update.

        DeepSpeed 0.19.6 takes each dynamic batch for the last, and under ZeRO-1 and 2 forgets
        earlier gradients.
        """
        if self.args.train.dynamic_batch_enable:
            is_last = bool(self.replay_buffer.dynamic_optimizer_step[step])
            self.actor.model.set_gradient_accumulation_boundary(is_last)
        return super().training_step(experience, kl_ctl, step, *args)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Overrides OpenRLHF's, which connects one rank in its own way."""

    def broadcast_to_vllm(self) -> None:
        """Overrides OpenRLHF's, which sends one parameter at a time; LoRA adapters travel as a part
        of the weights.
        """
        torch.cuda.empty_cache()
        with weights.merged_into_weights(self.actor.model.module):
            self._sender.send_weights()
        if self.args.vllm.enable_prefix_caching and torch.distributed.get_rank() == 0:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        torch.cuda.empty_cache()  # vLLM wakes on the same GPU next
        torch_dist_barrier_and_cuda_sync()
