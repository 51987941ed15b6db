"""OpenRLHF's actors of policy and reference model, and the policy's trainer, with our parts."""

import resource
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer, PolicyModelActor
from openrlhf.utils.distributed_util import torch_dist_barrier_and_cuda_sync
from torch import Tensor

from openrlhf_swap.integration.patches import POLICY_LOADS, REFERENCE_LOADS, installed, undecorated
from openrlhf_swap.integration.policy import adapters
from openrlhf_swap.integration.policy.rank_checkpoints import PolicyCheckpoints
from openrlhf_swap.integration.policy.recomputing import keep_products
from openrlhf_swap.integration.policy.scorer import PolicyScorer, ScoredForward
from openrlhf_swap.integration.runtime.cpu import release_freed_blocks, release_memory
from openrlhf_swap.integration.weights.source import PolicyWeights
from openrlhf_swap.integration.weights.worker import make_sender
from openrlhf_swap.runs.metrics import Metrics
from openrlhf_swap.scoring.answer import ScoreRequest

_StockPolicyActor: Any = undecorated(PolicyModelActor)
_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class IntrinsicRewardActor(_StockPolicyActor):
    """The policy, which also says how likely the reference answer becomes after each step."""

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Load the policy as OpenRLHF does, restore random states, and choose how to score."""
        if self._rank == 0:
            print("[swap] DeepSpeed: the policy loads its weights", flush=True)
        self._checkpoints = PolicyCheckpoints(strategy)
        with installed(POLICY_LOADS), self._checkpoints.explained_loading():
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.checkpoint_states:
            with self._checkpoints.explained_loading():
                self._checkpoints.load_random_state()
        reason = self.actor.hold_logits_of(strategy.args.swap_run.logits_chunk)
        if reason:
            strategy.print(
                f"[swap] warning: an update holds the logits of all of its tokens, because {reason}"
            )
        if strategy.args.swap_run.keeps_products:
            keep_products(self.actor.model.module)
        self._scorer = PolicyScorer(self.actor, strategy)

    def forward(
        self,
        requests: Sequence[ScoreRequest] | None = None,
        wanted: Sequence[str] = (),
        **batch: Any,
    ) -> Tensor | ScoredForward:
        """Action log-probabilities; with requests also signals of the steps.

        `PolicyScorer.forward` describes the latter.
        """
        release_freed_blocks()  # of the micro-batch before
        if requests is None:
            return super().forward(**batch)
        return self._scorer.forward(**batch, requests=requests, wanted=wanted)

    def fit(self, kl_ctl: float = 0) -> Metrics:
        """Update the policy; report how it scored, skipped updates, and peak memory.

        OpenRLHF's own method would also free the GPU's memory where nobody else waits for it.
        """
        release_freed_blocks()
        skipped = self.actor.model.skipped_steps
        self.actor.train()
        status = self.trainer.ppo_train(kl_ctl) | self._scorer.metrics
        self.trainer.replay_buffer.clear()
        release_memory(self.strategy.args)
        status["swap/skipped_updates"] = self.actor.model.skipped_steps - skipped
        peak_gib = _peak_bytes() / 2**30
        status["memory/policy_peak_gib"] = self.strategy.all_reduce(peak_gib, op="max")
        return status

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """Save the policy with random states; the checkpoint is complete or not there at all."""
        with_model = not self.disable_ds_ckpt
        with self._checkpoints.writing(tag, with_model, self.save_hf_ckpt) as name:
            super().save_checkpoint(name, *args, **kwargs)


def _peak_bytes() -> int:
    """Most memory of the GPU since the last call, or else of this process since its start."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 2**10
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return peak


class SwapReferenceActor(_StockReferenceActor):
    """The reference model, which holds the logits of a few tokens at a time, as the policy does."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        with installed(REFERENCE_LOADS):
            super().init_model_from_pretrained(strategy, pretrain)
        self.model.hold_logits_of(strategy.args.swap_run.logits_chunk)


class SwapPolicyTrainer(ActorPPOTrainer):
    """OpenRLHF's trainer of the policy, which sends its weights by vLLM's own transfer."""

    def __init__(self, *args: Any, vllm_engines: Any, **kwargs: Any) -> None:
        # With engines, OpenRLHF would connect one rank with them in its own way.
        super().__init__(*args, vllm_engines=None, **kwargs)
        self.vllm_engines = vllm_engines
        if self.args.swap_run.reuse_logprobs:
            self.actor_loss_fn: Any = partial(loss_with_own_logprobs, self.actor_loss_fn)
        if vllm_engines:
            model = self.actor.model.module
            plain = adapters.without_adapters(model)
            named = adapters.named_weights(model)
            source = PolicyWeights(plain, named, adapters.merges(model))
            rank = torch.distributed.get_rank()
            self._sender = make_sender(self.args, vllm_engines, source, rank)

    def broadcast_to_vllm(self) -> None:
        """Send all weights, those with LoRA adapters merged; OpenRLHF sends one at a time."""
        self._sender.send_weights()
        if self.args.vllm.enable_prefix_caching and torch.distributed.get_rank() == 0:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])
        release_memory(self.args)  # vLLM may wake on the same GPU next
        torch_dist_barrier_and_cuda_sync()


def loss_with_own_logprobs(
    loss: Any, log_probs: Tensor, _zeros: Tensor, *batch: Any, **sizes: Any
) -> Any:
    """OpenRLHF's loss of an update whose old (B, A) log-probabilities are its own, detached.

    Without a pass before the update, the batch has zeros in their place (`SwapExperienceMaker`).
    Ratios are 1, and their gradients those of the log-probabilities.
    """
    return loss(log_probs, log_probs.detach(), *batch, **sizes)
