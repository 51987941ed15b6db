"""The policy as its own reward model."""

from __future__ import annotations

import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from torch import Tensor

from openrlhf_swap import checkpoints
from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.integration import random_state
from openrlhf_swap.integration.patches import undecorated
from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix
from openrlhf_swap.scoring.shared_prefix import (
    ScoreRequest,
    branching_obstacle,
    score_branches,
    score_shared_prefix,
)

# Any request will do to take part in a collective forward; its score is thrown away.
_IDLE_REQUEST = ScoreRequest(row=0, prefix_ends=(0,), branch=AnswerBranch(ids=(0,), scored=(True,)))


@dataclass(frozen=True)
class ScoredForward:
    """What `IntrinsicRewardActor.forward` returns for a micro-batch with requests.

    Attributes:
        action_log_probs: (B, A) float32, as the stock actor returns them.
        answer_logprobs: l_0..l_K for each request, in order.
        seconds: what the scoring took on top of the log-probabilities.
    """

    action_log_probs: Tensor
    answer_logprobs: list[Tensor]
    seconds: float


class IntrinsicRewardActor(undecorated(PolicyModelActor)):
    """OpenRLHF's policy actor, which also says how likely the known answer becomes after each reasoning step.

    It scores with the weights that are about to be updated: there is no second copy of the model.
    """

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        packed_seq_lens: list[int] | None = None,
        mm_train_inputs_list: list | None = None,
        score_requests: Sequence[ScoreRequest] | None = None,
    ) -> Tensor | ScoredForward:
        """Action log-probabilities of a micro-batch and, where requested, answer log-probabilities.

        Args:
            sequences: (B, T) int64.
            action_mask: (B, A).
            attention_mask: (B, T).
            packed_seq_lens: as in OpenRLHF.
            mm_train_inputs_list: as in OpenRLHF.
            score_requests: which responses to score; None asks for the stock behaviour.
        """
        if score_requests is None:
            return super().forward(sequences, action_mask, attention_mask, packed_seq_lens, mm_train_inputs_list)
        requests = list(score_requests)
        if not requests and not self._forwards_are_collective():
            return ScoredForward(super().forward(sequences, action_mask, attention_mask), [], 0.0)

        device = torch.cuda.current_device()
        batch = (sequences.to(device), action_mask.to(device), attention_mask.to(device))
        self.actor.eval()
        with torch.no_grad():
            scored = self._score_one_by_one(*batch, requests) if self._one_by_one else self._score(*batch, requests)
        self.actor.train()
        return scored

    def init_model_from_pretrained(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF's; also restores the random state, and decides how to score."""
        ckpt = strategy.args.ckpt
        self._checkpoints, self._kept = Path(ckpt.path), (ckpt.max_num, ckpt.max_mem * 2**30)
        ckpt.max_num = ckpt.max_mem = sys.maxsize  # ours are rotated after the new one is complete
        random_state.forbid_pickles()
        try:
            super().init_model_from_pretrained(strategy, *args, **kwargs)
        except pickle.UnpicklingError as error:
            lines = str(error).splitlines()
            reason = next((line.strip() for line in lines if "Unsupported" in line), lines[0])
            raise CheckpointError(
                f"the checkpoint in --ckpt.path {ckpt.path} holds more than data ({reason}); if you trust it all the "
                "same, set the environment variable TORCH_FORCE_WEIGHTS_ONLY_LOAD=0"
            ) from error
        if self.checkpoint_states:
            tag = (self._checkpoints / checkpoints.FOLDER / checkpoints.LATEST).read_text(encoding="utf-8")
            random_state.load(self._random_state_file(tag))
        if strategy.args.train.dynamic_batch_enable:
            self._add_up_dynamic_batches()
        self._language_model = self.actor.model.module
        obstacle = branching_obstacle(self._language_model)
        self._one_by_one = strategy.args.swap.scoring == "per_prefix" or obstacle is not None
        if obstacle is not None:
            strategy.print(
                f"[swap] warning: this model's cache cannot be branched, because {obstacle}. Every prefix is scored "
                "by a forward of its own; with 25 steps that costs about 13 forwards of each correct response."
            )

    def _add_up_dynamic_batches(self) -> None:
        """Tell DeepSpeed which micro-batch is the last of an update.

        With dynamic batches OpenRLHF configures updates of one micro-batch and calls `step` after several. DeepSpeed
        0.19.6 then takes each of them for an update's last, and under ZeRO-1 and 2 forgets the gradients before it.
        """
        trainer, plain_step = self.trainer, self.trainer.training_step

        def training_step(experience: Any, kl_ctl: float, step: int, *args: Any) -> dict[str, Any]:
            is_last = trainer.replay_buffer.dynamic_optimizer_step[step]
            self.actor.model.set_gradient_accumulation_boundary(bool(is_last))
            return plain_step(experience, kl_ctl, step, *args)

        trainer.training_step = training_step

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """As OpenRLHF's; also counts the updates that DeepSpeed skipped over gradients that are not finite."""
        skipped = self.actor.model.skipped_steps
        status = super().fit(kl_ctl)
        status["swap/skipped_updates"] = self.actor.model.skipped_steps - skipped
        return status

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF's; also saves the random state, seals the checkpoint, and only then deletes the oldest.

        Raises:
            CheckpointError: when it cannot be written; what was written of it is deleted.
        """
        folder = self._checkpoints / checkpoints.FOLDER / tag
        try:
            super().save_checkpoint(tag, *args, **kwargs)
            if self.disable_ds_ckpt:
                return
            random_state.save(self._random_state_file(tag))
            torch.distributed.barrier()
            if self.strategy.is_rank_0():
                checkpoints.seal(folder)
                checkpoints.rotate(self._checkpoints, *self._kept)
        except (OSError, RuntimeError) as error:
            checkpoints.discard(folder)
            before = checkpoints.newest(self._checkpoints)
            remedy = (
                f"start again with --ckpt.load_enable to go on from {before}" if before else "no other was written"
            )
            raise CheckpointError(
                f"checkpoint {tag} cannot be written to --ckpt.path {self._checkpoints} ({error}); free some space, "
                f"or name another disk: {remedy}"
            ) from error

    def _random_state_file(self, tag: str) -> Path:
        return self._checkpoints / checkpoints.FOLDER / tag / f"random_state_{self.strategy.get_rank()}.pt"

    def _score(
        self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, requests: list[ScoreRequest]
    ) -> ScoredForward:
        """The log-probability pass also fills the cache that the answer branches run on: it is paid once."""
        asked = requests or [_IDLE_REQUEST]
        model = (self.actor.model, self._language_model.config)
        # Ranks that meet in collective forwards must run equally many of them.
        one_chunk = self._forwards_are_collective()
        if self.actor.packing_samples:
            # A packed pass has no cache that could be branched, so the prefixes need a pass of their own.
            log_probs = self.actor(sequences, action_mask, attention_mask)
            start = time.perf_counter()
            scores = score_shared_prefix(*model, sequences, attention_mask, asked, one_chunk=one_chunk)
        else:
            log_probs, output = self.actor(sequences, action_mask, attention_mask, return_output=True, use_cache=True)
            cache = output.past_key_values
            del output  # holds the logits of every token in float32
            start = time.perf_counter()
            scores = score_branches(*model, cache, sequences, attention_mask, asked, one_chunk=one_chunk)
        seconds = time.perf_counter() - start
        return ScoredForward(log_probs.to("cpu"), scores if requests else [], seconds)

    def _score_one_by_one(
        self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, requests: list[ScoreRequest]
    ) -> ScoredForward:
        log_probs = self.actor(sequences, action_mask, attention_mask)
        start = time.perf_counter()
        scores = []
        for request in requests:
            present = attention_mask[request.row].bool()
            lengths = present.cumsum(-1)[list(request.prefix_ends)].tolist()
            ids = sequences[request.row][present]
            scores.append(score_per_prefix(self.actor.model, ids, lengths, request.branch).to("cpu"))
        return ScoredForward(log_probs.to("cpu"), scores, time.perf_counter() - start)

    def _forwards_are_collective(self) -> bool:
        """Under ZeRO-3 each forward gathers parameters from all ranks."""
        return self.strategy.args.ds.zero_stage == 3 and torch.distributed.get_world_size() > 1
