"""The policy's signals, read in the forward that gives its action log-probabilities."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.distributed
from torch import Tensor

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, ENTROPY, NEED
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.policy.adapters import without_adapters
from openrlhf_swap.runs.metrics import Metrics
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, naming
from openrlhf_swap.scoring.backends import PER_PREFIX, SHARED_PREFIX, find_backend
from openrlhf_swap.scoring.entropies import mean_entropies
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.signals import by_request

# Any request will do to take part in a collective forward; its score is thrown away.
_IDLE_REQUEST = ScoreRequest(0, prefix_ends=(0,), branch=AnswerBranch((0,), scored=(True,)))


@dataclass(frozen=True)
class ScoredForward:
    """The answer of `IntrinsicRewardActor.forward` for a micro-batch whose signals are wanted.

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


@dataclass(frozen=True)
class _Pass:
    """The result of a pass over a micro-batch, and the seconds that scoring took."""

    log_probs: Tensor  # (B, A), of actions
    entropies: Any  # (B, T-1) in nats at the rollouts' temperature, if they are wanted
    of_branches: Any  # (m,) log-probabilities of the branches' targets, if there are branches
    found: Mapping[str, list[Tensor]] = field(default_factory=dict)  # signals by name
    seconds: float = 0.0


class PolicyScorer:
    """Reads signals with OpenRLHF's `Actor`, in its forward for action log-probabilities.

    Answers are scored in forwards of their own where they cannot ride along.
    """

    def __init__(self, actor: Any, strategy: Any) -> None:
        """Decide how to score.

        Raises ConfigError when ranks that have to keep in step could not.
        """
        self._actor = actor
        self._packed: bool = actor.packing_samples
        # Under ZeRO-3 each forward gathers parameters from all ranks, which must run equally many
        # of them.
        sharded = strategy.args.ds.zero_stage == 3
        self._collective = sharded and torch.distributed.get_world_size() > 1
        base = without_adapters(actor.model.module)
        # Tried at the start, too, but there on a CPU.
        backend = find_backend(base, strategy.args.swap_run.scoring, self._packed)
        self._backend = backend
        if self._collective and backend.name != SHARED_PREFIX:
            # Ranks would wait for each other without end.
            raise ConfigError(f"--ds.zero_stage is 3 with several actors: {backend}; use 2")
        if backend.obstacle is not None:
            strategy.print(f"[swap] warning: {backend}")
        self.metrics: Metrics = {}  # how the steps are scored, once some were

    @torch.no_grad()
    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        wanted: Sequence[str] = (ANSWER_LOGPROBS.name,),
    ) -> ScoredForward:
        """Action log-probabilities of a micro-batch, and the signals of its requests.

        `sequences` (B, T) int64, `action_mask` (B, A = T - 1), `attention_mask` (B, T); at most one
        request a row. `wanted` are the names that requests of any rank's micro-batches have.
        """
        device = torch.cuda.current_device()
        batch = MicroBatch(sequences.to(device), action_mask.to(device), attention_mask.to(device))
        if ANSWER_LOGPROBS.name in wanted:
            self.metrics["swap/scored_one_by_one"] = float(self._backend.name == PER_PREFIX)
        scored = naming(requests, ANSWER_LOGPROBS)
        # A rank without requests takes part in the passes of ranks that may have some.
        idle = not scored and self._collective and ANSWER_LOGPROBS.name in wanted
        asked = [_IDLE_REQUEST] if idle else scored
        self._actor.eval()
        result = self._pass(batch, asked, wanted)
        self._actor.train()
        found = {} if idle else dict(result.found)
        if ENTROPY.name in wanted:
            found[ENTROPY.name] = mean_entropies(result.entropies, naming(requests, ENTROPY))
        log_probs = result.log_probs.to("cpu")
        return ScoredForward(log_probs, by_request(requests, found), result.seconds)

    def _pass(
        self, batch: MicroBatch, requests: Sequence[ScoreRequest], wanted: Sequence[str]
    ) -> _Pass:
        """The pass over the rows; the answers of these requests are scored in it, or after it."""
        rides = self._backend.name == SHARED_PREFIX and self._actor.head is not None
        if requests and rides:
            return self._pass_with_branches(batch, requests, wanted)
        result = self._pass_over_rows(batch, wanted)
        if not requests:
            return result
        start = _clock()
        found = self._backend.read(
            self._actor.model,
            batch.sequences,
            batch.attention_mask,
            requests,
            packed=self._packed,
            agree=self._largest_on_any_rank,
            keeps_keys=NEED.name in wanted,
        )
        return replace(result, found=found, seconds=_clock() - start)

    def _pass_over_rows(
        self, batch: MicroBatch, wanted: Sequence[str], branches: BranchedRows | None = None
    ) -> _Pass:
        """The pass over the rows, and their branches; entropies if a signal is made of them."""
        log_probs, output = self._actor(
            batch.sequences,
            batch.action_mask,
            batch.attention_mask,
            return_output=True,
            return_entropy=ENTROPY.name in wanted,
            branches=branches,
        )
        entropies = getattr(output, "entropy", None)
        of_branches = getattr(output, "of_branches", None)
        return _Pass(log_probs, entropies, of_branches)

    def _pass_with_branches(
        self, batch: MicroBatch, requests: Sequence[ScoreRequest], wanted: Sequence[str]
    ) -> _Pass:
        """The pass over the rows with answer branches behind them, then passes for hidden steps."""
        hides_steps = NEED.name in wanted
        rows = BranchedRows(
            self._actor.model,
            batch.attention_mask,
            requests,
            packed=self._packed,
            agree=self._largest_on_any_rank,
            keeps_keys=hides_steps,
        )
        start = _clock()
        result = self._pass_over_rows(batch, wanted, rows)
        hidden = rows.steps_to_hide()  # found while a GPU works
        passed = _clock()
        scores = rows.scores(result.of_branches)
        needs = rows.needs(hidden, result.of_branches, self._actor.log_probs_of)
        seconds = (passed - start) * rows.share
        if hides_steps:
            seconds += _clock() - passed
        found = {ANSWER_LOGPROBS.name: scores, NEED.name: needs}
        return replace(result, found=found, seconds=seconds)

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
