"""OpenRLHF's actors of the policy and the reference model; importing them from here prepares their processes."""

import resource
from collections.abc import Sequence
from typing import Any

import torch
from openrlhf.trainer.ray.launcher import ReferenceModelActor
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from torch import Tensor

from openrlhf_swap.integration.patches import POLICY_LOADS, REFERENCE_LOADS, installed, undecorated
from openrlhf_swap.integration.policy import moving_average
from openrlhf_swap.integration.policy.checkpoints import PolicyCheckpoints
from openrlhf_swap.integration.policy.scoring import PolicyScorer, ScoredForward
from openrlhf_swap.scoring.answer import ScoreRequest
from openrlhf_swap.scoring.states import StateRequest

_StockPolicyActor: Any = undecorated(PolicyModelActor)
_StockReferenceActor: Any = undecorated(ReferenceModelActor)


class IntrinsicRewardActor(_StockPolicyActor):
    """The policy as its own reward model: it also says how likely the reference answer becomes after each step.

    It scores with the weights that are about to be updated: there is no second copy of the model.
    """

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """Overrides OpenRLHF's: also restores the random state, and chooses the scoring backend."""
        if self._rank == 0:
            print("[swap] DeepSpeed: the policy loads its weights", flush=True)
        self._checkpoints = PolicyCheckpoints(strategy)
        with installed(POLICY_LOADS), self._checkpoints.explained_loading():
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        if self.ema_model is not None:
            moving_average.begin(self.ema_model, strategy.is_rank_0())
        if self.checkpoint_states:
            self._checkpoints.load_beside_the_model(self.ema_model)
        if reason := self.actor.hold_logits_of(strategy.args.swap_run.logits_chunk):
            strategy.print(f"[swap] warning: an update holds the logits of all of its tokens, because {reason}")
        self._scorer = PolicyScorer(self.actor, strategy)

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        *stock: Any,
        score_requests: Sequence[ScoreRequest] | None = None,
        state_requests: Sequence[StateRequest] | None = None,
        **options: Any,
    ) -> Tensor | ScoredForward:
        """Overrides OpenRLHF's: also scores answers and returns hidden states of a micro-batch, where requested.

        `sequences` (B, T) int64, `action_mask` (B, A), `attention_mask` (B, T); the rest as in OpenRLHF.
        """
        if score_requests is None and state_requests is None:
            return super().forward(sequences, action_mask, attention_mask, *stock, **options)
        assert action_mask is not None and attention_mask is not None
        return self._scorer.forward(sequences, action_mask, attention_mask, score_requests, state_requests or ())

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """Overrides OpenRLHF's: also counts updates that DeepSpeed skipped, and reports the ranks' peak memory."""
        skipped = self.actor.model.skipped_steps
        status = super().fit(kl_ctl)
        status["swap/skipped_updates"] = self.actor.model.skipped_steps - skipped
        status["memory/policy_peak_gib"] = self.strategy.all_reduce(peak_gib(), op="max")
        return status

    def save_model(self) -> None:
        """Overrides OpenRLHF's: a moving average is exported in bfloat16."""
        with moving_average.rounded(self.ema_model):
            super().save_model()

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """Overrides OpenRLHF's: also saves random state and moving average; complete or not at all."""
        parts = not self.disable_ds_ckpt, self.save_hf_ckpt
        with self._checkpoints.writing(tag, self.ema_model, *parts) as name, moving_average.rounded(self.ema_model):
            super().save_checkpoint(name, *args, **kwargs)


def peak_gib() -> float:
    """This process's peak: of GPU memory since the last call or, without a GPU, of main memory since its start."""
    if not torch.cuda.is_available():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20  # Linux counts in KiB
    peak = torch.cuda.max_memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    return peak


class SwapReferenceActor(_StockReferenceActor):
    """Its log-probabilities are made in chunks, as the policy's are."""

    def init_model_from_pretrained(self, strategy: Any, pretrain: str) -> None:
        with installed(REFERENCE_LOADS):
            super().init_model_from_pretrained(strategy, pretrain)
        self.model.hold_logits_of(strategy.args.swap_run.logits_chunk)
