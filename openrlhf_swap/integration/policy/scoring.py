"""Scoring answers with the policy while its log-probabilities are computed."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.policy.weights import without_adapters
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.backends import SHARED_PREFIX, find_backend
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.states import StateRequest, recording_states

# Any request will do to take part in a collective forward; its score is thrown away.
_IDLE_REQUEST = ScoreRequest(row=0, prefix_ends=(0,), branch=AnswerBranch(ids=(0,), scored=(True,)))


@dataclass(frozen=True)
class ScoredForward:
    """What `IntrinsicRewardActor.forward` returns for a micro-batch with requests."""

    action_log_probs: Tensor  # (B, A) float32, as the stock actor returns them
    answer_logprobs: list[Tensor]  # l_0..l_K for each request, in order
    seconds: float  # what the scoring took; of a pass for log-probabilities and scores, its share of the tokens
    states: list[Tensor]  # (K+1, d) float32 for each request of states, in order


class PolicyScorer:
    """Scores requests with OpenRLHF's `Actor`, in the forward that gives its action log-probabilities."""

    def __init__(self, actor: Any, strategy: Any) -> None:
        """Decides how to score; raises ConfigError when ranks that have to keep in step could not."""
        self._actor, self._model, self._config = actor, actor.model, actor.model.module.config
        # Under ZeRO-3 each forward gathers parameters from all ranks, which must run equally many of them.
        self._collective = strategy.args.ds.zero_stage == 3 and torch.distributed.get_world_size() > 1
        self._base = base = without_adapters(actor.model.module)
        # Tried here as well, because on a GPU a family may run kernels of its own.
        device = next(base.parameters()).device
        scoring = strategy.args.swap_run.scoring
        self._backend = find_backend(self._config, type(base), scoring, device, actor.packing_samples)
        if self._collective and self._backend.name != SHARED_PREFIX:  # ranks would wait for each other without end
            raise ConfigError(f"--ds.zero_stage is 3 with several actors: {self._backend}; use 2")
        if self._backend.obstacle is not None:
            strategy.print(f"[swap] warning: {self._backend}")

    @torch.no_grad()
    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest] | None,
        state_requests: Sequence[StateRequest] = (),
    ) -> ScoredForward:
        """Action log-probabilities of a micro-batch, answer log-probabilities of its requests, and states.

        `sequences` (B, T) int64, `action_mask` (B, A = T - 1), `attention_mask` (B, T); at most one request a row, and
        None where no rank has any.
        """
        device = torch.cuda.current_device()
        sequences, action_mask, attention_mask = (part.to(device) for part in (sequences, action_mask, attention_mask))
        packed, agree = self._actor.packing_samples, self._largest_on_any_rank
        # A rank without requests takes part where another may have some.
        asked = requests or ([_IDLE_REQUEST] if requests is not None and self._collective else [])
        rides = self._backend.name == SHARED_PREFIX and self._actor.head is not None
        scores: list[Tensor] = []
        seconds = 0.0
        self._actor.eval()
        with recording_states(self._base, attention_mask, state_requests, packed) as states:
            if asked and rides:
                branches = BranchedRows(self._model, self._config, attention_mask, asked, packed, agree)
                start = _clock()
                batch = sequences, action_mask, attention_mask
                log_probs, output = self._actor(*batch, return_output=True, branches=branches)
                seconds = (_clock() - start) * branches.share
                scores = branches.scores(output.answer_log_probs)
            else:
                log_probs = self._actor(sequences, action_mask, attention_mask)
        if asked and not rides:
            start = _clock()
            scores = self._backend.score(self._model, self._config, sequences, attention_mask, asked, packed, agree)
            seconds = _clock() - start
        self._actor.train()
        return ScoredForward(log_probs.to("cpu"), scores if requests else [], seconds, states)

    def _largest_on_any_rank(self, count: int) -> int:
        """The largest `count` of all ranks where they have to run the same forwards; else this one's."""
        if not self._collective:
            return count
        largest = torch.tensor(count, device=torch.cuda.current_device())
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return int(largest)


def _clock() -> float:
    """Seconds, when the device has done what it was given."""
    torch.cuda.synchronize()
    return time.perf_counter()
