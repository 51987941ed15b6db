"""The policy's signals, read in the forward that gives its action log-probabilities."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, NEED, STATES
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.policy.weights import without_adapters
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, naming
from openrlhf_swap.scoring.backends import SHARED_PREFIX, find_backend
from openrlhf_swap.scoring.need import check_can_hide_steps
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.signals import by_request
from openrlhf_swap.scoring.states import recording_states

# Any request will do to take part in a collective forward; its score is thrown away.
_IDLE_REQUEST = ScoreRequest(0, prefix_ends=(0,), branch=AnswerBranch((0,), scored=(True,)))


@dataclass(frozen=True)
class ScoredForward:
    """What `IntrinsicRewardActor.forward` returns for a micro-batch of which signals are wanted.

    Attributes:
        action_log_probs: (B, A) float32, as the stock actor returns them.
        signals: for each request, in order, its signals by name, on the CPU (`algorithm.signals`).
        seconds: what the scoring took; in a pass for log-probabilities and scores, its share of the
            tokens.
    """

    action_log_probs: Tensor
    signals: list[dict[str, Tensor]]
    seconds: float


@dataclass(frozen=True)
class MicroBatch:
    """(B, T) int64 `sequences`, (B, A = T - 1) `action_mask` and (B, T) `attention_mask`."""

    sequences: Tensor
    action_mask: Tensor
    attention_mask: Tensor


class PolicyScorer:
    """Reads signals with OpenRLHF's `Actor`, in its forward for action log-probabilities.

    Answers are scored in forwards of their own where they cannot ride along.
    """

    def __init__(self, actor: Any, strategy: Any) -> None:
        """Decide how to score.

        Raises ConfigError when ranks that have to keep in step could not.
        """
        self._actor = actor
        self._model = actor.model
        self._config = actor.model.module.config
        self._packed: bool = actor.packing_samples
        # Under ZeRO-3 each forward gathers parameters from all ranks, which must run equally many
        # of them.
        sharded = strategy.args.ds.zero_stage == 3
        self._collective = sharded and torch.distributed.get_world_size() > 1
        self._base = without_adapters(actor.model.module)
        # Tried here as well, because on a GPU a family may run kernels of its own.
        device = next(self._base.parameters()).device
        scoring = strategy.args.swap_run.scoring
        backend = find_backend(
            self._config,
            type(self._base),
            scoring,
            device,
            self._packed,
        )
        self._backend = backend
        if self._collective and backend.name != SHARED_PREFIX:
            # Ranks would wait for each other without end.
            raise ConfigError(f"--ds.zero_stage is 3 with several actors: {backend}; use 2")
        if backend.obstacle is not None:
            strategy.print(f"[swap] warning: {backend}")

    @torch.no_grad()
    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        signals: Sequence[str] = (ANSWER_LOGPROBS.name,),
    ) -> ScoredForward:
        """Action log-probabilities of a micro-batch, and the signals of its requests.

        `sequences` (B, T) int64, `action_mask` (B, A = T - 1), `attention_mask` (B, T); at most one
        request a row. `signals` are the names that requests of any rank's micro-batches have.
        Raises ConfigError for `need` of a model from which steps cannot be hidden.
        """
        if NEED.name in signals:
            check_can_hide_steps(self._base, self._backend.obstacle_to_branches)
        device = torch.cuda.current_device()
        batch = MicroBatch(sequences.to(device), action_mask.to(device), attention_mask.to(device))
        scored = naming(requests, ANSWER_LOGPROBS)
        # A rank without requests takes part where another may have some.
        idle = not scored and self._collective and ANSWER_LOGPROBS.name in signals
        asked = [_IDLE_REQUEST] if idle else scored
        stated = naming(requests, STATES)
        self._actor.eval()
        with recording_states(
            self._base,
            batch.attention_mask,
            stated,
            self._packed,
        ) as states:
            log_probs, found, seconds = self._pass(batch, asked, NEED.name in signals)
        self._actor.train()
        if idle:
            found = {}
        found[STATES.name] = states
        return ScoredForward(log_probs.to("cpu"), by_request(requests, found), seconds)

    def _pass(
        self,
        batch: MicroBatch,
        requests: Sequence[ScoreRequest],
        hides_steps: bool,
    ) -> tuple[Tensor, dict[str, list[Tensor]], float]:
        """Action log-probabilities, what was found by name, and the seconds that this took."""
        inputs = batch.sequences, batch.action_mask, batch.attention_mask
        rides = self._backend.name == SHARED_PREFIX and self._actor.head is not None
        if requests and rides:
            return self._pass_with_branches(batch, requests, hides_steps)
        log_probs = self._actor(*inputs)
        if not requests:
            return log_probs, {}, 0.0
        start = _clock()
        found = self._backend.read(
            self._model,
            self._config,
            batch.sequences,
            batch.attention_mask,
            requests,
            self._packed,
            self._largest_on_any_rank,
            hides_steps,
        )
        return log_probs, found, _clock() - start

    def _pass_with_branches(
        self,
        batch: MicroBatch,
        requests: Sequence[ScoreRequest],
        hides_steps: bool,
    ) -> tuple[Tensor, dict[str, list[Tensor]], float]:
        """As `_pass`, with answer branches behind the rows, and then passes for hidden steps."""
        inputs = batch.sequences, batch.action_mask, batch.attention_mask
        rows = BranchedRows(
            self._model,
            self._config,
            batch.attention_mask,
            requests,
            self._packed,
            self._largest_on_any_rank,
            keeps_keys=hides_steps,
        )
        start = _clock()
        log_probs, output = self._actor(*inputs, return_output=True, branches=rows)
        passed = _clock()
        scores = rows.scores(output.answer_log_probs)
        needs = rows.needs(output.answer_log_probs, self._actor.log_probs_of)
        seconds = (passed - start) * rows.share
        if hides_steps:
            seconds += _clock() - passed
        return log_probs, {ANSWER_LOGPROBS.name: scores, NEED.name: needs}, seconds

    def _largest_on_any_rank(self, count: int) -> int:
        """The largest `count` of all ranks, where they must run the same forwards."""
        if not self._collective:
            return count
        largest = torch.tensor(count, device=torch.cuda.current_device())
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return int(largest)


def _clock() -> float:
    """Seconds, read after the device has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()
