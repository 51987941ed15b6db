"""The policy as its own reward model."""

from __future__ import annotations

import pickle
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed
from openrlhf.trainer.ray.ppo_actor import PolicyModelActor
from safetensors import SafetensorError
from torch import Tensor

from openrlhf_swap import checkpoints
from openrlhf_swap.errors import CheckpointError
from openrlhf_swap.integration import moving_average, patches, random_state
from openrlhf_swap.integration.policy_trainer import SwapPolicyTrainer
from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix
from openrlhf_swap.scoring.shared_prefix import (
    ScoreRequest,
    alone_in_its_row,
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


class IntrinsicRewardActor(patches.undecorated(PolicyModelActor)):
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
            with patches.rebound({"openrlhf.trainer.ray.ppo_actor.ActorPPOTrainer": SwapPolicyTrainer}):
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
            self._load_beside_the_model(tag)
        if strategy.args.ds.zero_stage == 3:
            self._check_gradients_of_stage_3()
        self._language_model = self.actor.model.module
        obstacle = branching_obstacle(self._language_model)
        self._one_by_one = strategy.args.swap.scoring == "per_prefix" or obstacle is not None
        if obstacle is not None:
            strategy.print(
                f"[swap] warning: this model's cache cannot be branched, because {obstacle}. Every prefix is scored "
                "by a forward of its own; with 25 steps that costs about 13 forwards of each correct response."
            )

    def _check_gradients_of_stage_3(self) -> None:
        """Skip gradients that are not finite: in bfloat16, DeepSpeed 0.19.6 looks for them in stages 1 and 2 only."""
        optimizer = self.actor.model.optimizer
        check_and_scale = optimizer._overflow_check_and_loss_scale_update

        def checked() -> bool:
            optimizer.check_overflow()
            return check_and_scale()

        optimizer._overflow_check_and_loss_scale_update = checked

    def fit(self, kl_ctl: float = 0) -> dict[str, Any]:
        """As OpenRLHF's; also counts the updates that DeepSpeed skipped over gradients that are not finite."""
        skipped = self.actor.model.skipped_steps
        status = super().fit(kl_ctl)
        status["swap/skipped_updates"] = self.actor.model.skipped_steps - skipped
        return status

    def save_checkpoint(self, tag: str, *args: Any, **kwargs: Any) -> None:
        """As OpenRLHF's; also saves the random state and the moving average, and seals the checkpoint.

        Only then the oldest one is deleted, or the one that was the best.

        Raises:
            CheckpointError: when it cannot be written; the next start deletes what was written of it.
        """
        # OpenRLHF deletes the best one before it writes a better one, so this does not go by the name of one.
        name = f"new_{tag}" if tag.startswith("best") else tag
        folder = self._folder_of(name)
        try:
            if self.strategy.is_rank_0() and not self.disable_ds_ckpt:
                checkpoints.begin(folder)
            torch.distributed.barrier()
            super().save_checkpoint(name, *args, **kwargs)
            if self.save_hf_ckpt and name != tag and self.strategy.is_rank_0():
                exported = self._checkpoints / f"{tag}_hf"
                shutil.rmtree(exported, ignore_errors=True)  # of an earlier run
                (self._checkpoints / f"{name}_hf").rename(exported)
            if self.disable_ds_ckpt:
                return
            self._save_beside_the_model(name)
            torch.distributed.barrier()
            if self.strategy.is_rank_0():
                checkpoints.seal(folder, self.strategy.args.swap.objective)
                if name != tag:
                    checkpoints.take_the_place_of_the_best(folder, tag)
                checkpoints.rotate(self._checkpoints, *self._kept)
        except (OSError, RuntimeError, SafetensorError) as error:
            # What was written stays, marked incomplete, until the next start: other ranks may still be writing.
            before = checkpoints.newest(self._checkpoints)
            remedy = (
                f"start again with --ckpt.load_enable to go on from {before}" if before else "no other was written"
            )
            raise CheckpointError(
                f"checkpoint {tag} cannot be written to --ckpt.path {self._checkpoints} ({error}); free some space, "
                f"or name another disk: {remedy}"
            ) from error

    def _folder_of(self, tag: str) -> Path:
        return self._checkpoints / checkpoints.FOLDER / tag

    def _save_beside_the_model(self, tag: str) -> None:
        random_state.save(self._folder_of(tag) / f"random_state_{self.strategy.get_rank()}.pt")
        if self.ema_model is not None and self.strategy.is_rank_0():
            moving_average.save(self._folder_of(tag), self.ema_model, self.strategy)

    def _load_beside_the_model(self, tag: str) -> None:
        random_state.load(self._folder_of(tag) / f"random_state_{self.strategy.get_rank()}.pt")
        if self.ema_model is not None:
            moving_average.load(self._folder_of(tag), self.ema_model, self.strategy)

    def _score(
        self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, requests: list[ScoreRequest]
    ) -> ScoredForward:
        """The log-probability pass also fills the cache that the answer branches run on: it is paid once."""
        asked = list(requests) or [_IDLE_REQUEST]
        model = (self.actor.model, self._language_model.config)
        # Ranks that meet in collective forwards must run equally many of them.
        one_chunk = self._forwards_are_collective()
        if self.actor.packing_samples:
            # A packed pass has no cache that could be branched, so the prefixes need a pass of their own: a response
            # at a time, because all of them padded to the longest could be many times what packing has room for.
            log_probs = self.actor(sequences, action_mask, attention_mask)
            asked += [_IDLE_REQUEST] * (self._most_on_a_rank(len(asked)) - len(asked))
            start = self._clock()
            scores = []
            for request in asked:
                row, alone = alone_in_its_row(request, sequences, attention_mask)
                scores += score_shared_prefix(*model, row, torch.ones_like(row), [alone], one_chunk=one_chunk)
            scores = scores[: len(requests)]
        else:
            log_probs, output = self.actor(sequences, action_mask, attention_mask, return_output=True, use_cache=True)
            cache = output.past_key_values
            del output  # holds the logits of every token in float32
            start = self._clock()
            scores = score_branches(*model, cache, sequences, attention_mask, asked, one_chunk=one_chunk)
        seconds = self._clock() - start
        return ScoredForward(log_probs.to("cpu"), scores if requests else [], seconds)

    def _score_one_by_one(
        self, sequences: Tensor, action_mask: Tensor, attention_mask: Tensor, requests: list[ScoreRequest]
    ) -> ScoredForward:
        log_probs = self.actor(sequences, action_mask, attention_mask)
        start = self._clock()
        scores = []
        for request in requests:
            row, alone = alone_in_its_row(request, sequences, attention_mask)
            lengths = [end + 1 for end in alone.prefix_ends]
            scores.append(score_per_prefix(self.actor.model, row[0], lengths, request.branch).to("cpu"))
        return ScoredForward(log_probs.to("cpu"), scores, self._clock() - start)

    @staticmethod
    def _clock() -> float:
        """Seconds, when the device has done what it was given."""
        torch.cuda.synchronize()
        return time.perf_counter()

    def _most_on_a_rank(self, count: int) -> int:
        """The largest `count` of all ranks where they have to run the same forwards; else this one's."""
        if not self._forwards_are_collective():
            return count
        most = torch.tensor(count, device=torch.cuda.current_device())
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        return int(most)

    def _forwards_are_collective(self) -> bool:
        """Under ZeRO-3 each forward gathers parameters from all ranks."""
        return self.strategy.args.ds.zero_stage == 3 and torch.distributed.get_world_size() > 1
