"""OpenRLHF's `Actor` with log-probabilities that never hold the logits of all tokens, and answers
scored beside them.

Only the model's head, its last linear layer, gives log-probabilities in the place of logits. So
ZeRO-3 gathers the head's weight once for each pass, whatever the number of chunks.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed
from openrlhf.models.actor import Actor
from openrlhf.models.ring_attn_utils import unpad_and_slice_tensor
from torch import Tensor, nn
from transformers import PretrainedConfig

from openrlhf_swap.algorithm.log_probs import HeadPass, LogitTransform, token_log_probs
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.integration.policy.weights import without_adapters
from openrlhf_swap.packages.versions import replaced
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest
from openrlhf_swap.scoring.backends import MODEL_ERRORS, SHARED_PREFIX, find_backend
from openrlhf_swap.scoring.shared_prefix import BranchedRows
from openrlhf_swap.scoring.small_model import WORDS, small_model
from openrlhf_swap.scoring.states import StateRequest, recording_states

_StockActor: Any = Actor
_PROBES = 60.0  # logits of either sign that a transform is looked at with
# Any request will do to take part in a collective forward; its score is thrown away.
_IDLE_REQUEST = ScoreRequest(row=0, prefix_ends=(0,), branch=AnswerBranch(ids=(0,), scored=(True,)))


@dataclass(frozen=True)
class Head:
    """A model's last layer, what follows it, and how many tokens' logits may be there at a time."""

    layer: nn.Linear
    transform: LogitTransform
    chunk: int


class ChunkedActor(_StockActor):
    head: Head | None = None  # None while log-probabilities are made all at once

    def hold_logits_of(self, tokens: int) -> str | None:
        """Make log-probabilities of this many tokens at a time, or all at once for 0; returns why a
        model cannot.
        """
        if not tokens:
            return None
        base = without_adapters(self.model.module)
        layer = base.get_output_embeddings()
        if type(layer) is not nn.Linear:
            return f"its head is a {type(layer).__name__}"
        if (transform := find_logit_transform(base.config, type(base))) is None:
            return f"what a {type(base).__name__} does after its head is not known"
        self.head = Head(layer, transform, tokens)
        return None

    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor | None = None,
        attention_mask: Tensor | None = None,
        return_output: bool = False,
        ring_attn_group: Any = None,
        return_entropy: bool = False,
        branches: BranchedRows | None = None,
        **options: Any,
    ) -> Any:
        """Overrides OpenRLHF's: where log-probabilities are made in chunks, the output has no
        logits.

        `sequences` (B, T) int64, `action_mask` (B, A), without which the logits themselves are
        asked for, `attention_mask` (B, T). The output gets (B, T - 1) `entropy`, 0 for tokens that
        are not actions, if it is asked for; and, if log-probabilities are made in chunks, those of
        the (m,) targets of `branches`, which run after the rows, at temperature 1 as
        `answer_log_probs`.
        """
        if self.head is None or action_mask is None or ring_attn_group is not None:
            options |= {"ring_attn_group": ring_attn_group, "return_entropy": return_entropy}
            return super().forward(sequences, action_mask, attention_mask, return_output, **options)
        assert attention_mask is not None
        options.pop("packed_seq_lens", None)
        ids, places, positions, targets = self._inputs(sequences, attention_mask)
        if branches is None:
            options |= {"input_ids": ids, "position_ids": positions}
            options["attention_mask"] = None if self.packing_samples else attention_mask
        else:
            options |= branches.inputs(ids, positions)
        acting = torch.zeros_like(sequences, dtype=torch.bool)
        acting[:, -1 - action_mask.shape[1] : -1] = action_mask.bool()
        actions = acting.flatten()[places].nonzero().flatten()
        head_pass = HeadPass(self.head.transform, self.temperature, self.head.chunk, return_entropy)
        with (
            _giving_log_probs(
                self.head.layer, targets.flatten(), actions, head_pass, branches
            ) as outputs,
            nullcontext() if branches is None else branches.branching(),
        ):
            output = self.model(**options)
        values = outputs.pop().flatten(0, -2)
        padded = values.new_zeros(sequences.numel(), values.shape[-1]).index_copy(0, places, values)
        log_probs, *entropy = padded.unflatten(0, sequences.shape)[:, :-1].unbind(-1)
        if return_entropy:
            output.entropy = entropy[0]
        if branches is not None:
            output.answer_log_probs = outputs.pop()
        log_probs = log_probs[:, -action_mask.shape[1] :]
        return (log_probs, output) if return_output else log_probs

    def _inputs(
        self, sequences: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What the model runs on: ids, their places in B * T, position ids, and the tokens that
        follow them.
        """
        if self.packing_samples:
            ids, positions, targets, _, places = unpad_and_slice_tensor(
                sequences, attention_mask, None
            )
            return ids, places, positions, targets
        positions = (attention_mask.long().cumsum(-1) - 1).masked_fill_(attention_mask == 0, 1)
        places = torch.arange(sequences.numel(), device=sequences.device)
        return sequences, places, positions, sequences.roll(-1, dims=1)


@contextmanager
def _giving_log_probs(
    layer: nn.Linear,
    targets: Tensor,
    actions: Tensor,
    head_pass: HeadPass,
    branches: BranchedRows | None,
) -> Iterator[list[Tensor]]:
    """Let the layer return what `token_log_probs` does inside the block; the list gets it after
    DeepSpeed's hooks.

    With branches, their targets' log-probabilities come first.
    """
    outputs: list[Tensor] = []

    def forward(hidden: Tensor) -> Tensor:
        if branches is not None:
            answers, wanted = (
                hidden[branches.predicting],
                torch.arange(len(branches.targets), device=hidden.device),
            )
            unscaled = replace(head_pass, temperature=1.0, entropy=False)
            values = token_log_probs(
                answers, layer.weight, layer.bias, branches.targets, wanted, unscaled
            )
            outputs.append(values.squeeze(-1))
            hidden = hidden[:, : branches.tokens]
        values = token_log_probs(
            hidden.flatten(0, -2), layer.weight, layer.bias, targets, actions, head_pass
        )
        return values.unflatten(0, hidden.shape[:-1])

    hook = layer.register_forward_hook(lambda _layer, _inputs, output: outputs.append(output))
    with hook, replaced(layer, "forward", forward, "transformers"):
        yield outputs


def find_logit_transform(config: PretrainedConfig, build: Any) -> LogitTransform | None:
    """What a family does to its head's output, tried on a small random model of it; None if it is
    not known.
    """
    probes = torch.linspace(-_PROBES, _PROBES, WORDS).expand(1, 2, WORDS)
    try:
        model = small_model(config, build)
        layer = model.get_output_embeddings()
        with (
            torch.no_grad(),
            replaced(layer, "forward", lambda hidden: probes + 0 * hidden[..., :1]),
        ):
            logits = model(torch.zeros(1, 2, dtype=torch.int64), use_cache=False).logits
    except MODEL_ERRORS:
        return None
    text = config.get_text_config()
    cap = getattr(text, "final_logit_softcapping", None) or getattr(text, "logits_soft_cap", None)
    transforms = (LogitTransform(float(logits[0, 0, -1]) / _PROBES), LogitTransform(cap=cap))
    same = (
        transform
        for transform in transforms
        if torch.allclose(transform(probes.clone()), logits, atol=1e-4)
    )
    return next(same, None)


@dataclass(frozen=True)
class ScoredForward:
    """What `IntrinsicRewardActor.forward` returns for a micro-batch with requests."""

    action_log_probs: Tensor  # (B, A) float32, as the stock actor returns them
    answer_logprobs: list[Tensor]  # l_0..l_K for each request, in order
    seconds: float  # what the scoring took; of a pass for log-probabilities and scores, its share of the tokens
    states: list[Tensor]  # (K+1, d) float32 for each request of states, in order


class PolicyScorer:
    """Scores requests with OpenRLHF's `Actor`, in the forward that gives its action
    log-probabilities.
    """

    def __init__(self, actor: Any, strategy: Any) -> None:
        """Decides how to score; raises ConfigError when ranks that have to keep in step could not."""
        self._actor, self._model, self._config = actor, actor.model, actor.model.module.config
        # Under ZeRO-3 each forward gathers parameters from all ranks, which must run equally many
        # of them.
        self._collective = (
            strategy.args.ds.zero_stage == 3 and torch.distributed.get_world_size() > 1
        )
        self._base = base = without_adapters(actor.model.module)
        # Tried here as well, because on a GPU a family may run kernels of its own.
        device = next(base.parameters()).device
        scoring = strategy.args.swap_run.scoring
        self._backend = find_backend(
            self._config, type(base), scoring, device, actor.packing_samples
        )
        if (
            self._collective and self._backend.name != SHARED_PREFIX
        ):  # ranks would wait for each other without end
            raise ConfigError(f"--ds.zero_stage is 3 with several actors: {self._backend}; use 2")
        if self._backend.obstacle is not None:
            strategy.print(f"[swap] warning: {self._backend}")

    @torch.no_grad()
    def forward(
        self,
        sequences: Tensor,
        action_mask: Tensor,
        attention_mask: Tensor,
        score_requests: Sequence[ScoreRequest] | None,
        state_requests: Sequence[StateRequest] | None = None,
    ) -> ScoredForward:
        """Action log-probabilities of a micro-batch, answer log-probabilities of its requests, and
        states.

        `sequences` (B, T) int64, `action_mask` (B, A = T - 1), `attention_mask` (B, T); at most one
        request a row, and None where no rank has any.
        """
        device = torch.cuda.current_device()
        sequences, action_mask, attention_mask = (
            part.to(device) for part in (sequences, action_mask, attention_mask)
        )
        packed, agree = self._actor.packing_samples, self._largest_on_any_rank
        # A rank without requests takes part where another may have some.
        asked = score_requests or (
            [_IDLE_REQUEST] if score_requests is not None and self._collective else []
        )
        rides = self._backend.name == SHARED_PREFIX and self._actor.head is not None
        scores: list[Tensor] = []
        seconds = 0.0
        self._actor.eval()
        with recording_states(self._base, attention_mask, state_requests or (), packed) as states:
            if asked and rides:
                branches = BranchedRows(
                    self._model, self._config, attention_mask, asked, packed, agree
                )
                start = _clock()
                batch = sequences, action_mask, attention_mask
                log_probs, output = self._actor(*batch, return_output=True, branches=branches)
                seconds = (_clock() - start) * branches.share
                scores = branches.scores(output.answer_log_probs)
            else:
                log_probs = self._actor(sequences, action_mask, attention_mask)
        if asked and not rides:
            start = _clock()
            scores = self._backend.score(
                self._model, self._config, sequences, attention_mask, asked, packed, agree
            )
            seconds = _clock() - start
        self._actor.train()
        return ScoredForward(log_probs.to("cpu"), scores if score_requests else [], seconds, states)

    def _largest_on_any_rank(self, count: int) -> int:
        """The largest `count` of all ranks where they have to run the same forwards; else this
        one's.
        """
        if not self._collective:
            return count
        largest = torch.tensor(count, device=torch.cuda.current_device())
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return int(largest)


def _clock() -> float:
    """Seconds, read after the device has finished its work."""
    torch.cuda.synchronize()
    return time.perf_counter()
