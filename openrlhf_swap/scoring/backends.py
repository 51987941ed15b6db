"""How prefixes are scored: together where a trial on a small random model of the same architecture
is exact.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from openrlhf_swap.errors import first_line
from openrlhf_swap.packages.versions import warn_if_untested
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, score_per_prefix
from openrlhf_swap.scoring.shared_prefix import score_shared_prefix
from openrlhf_swap.scoring.small_model import WORDS, small_model

SHARED_PREFIX, PER_PREFIX = "shared_prefix", "per_prefix"
COSTS = {
    SHARED_PREFIX: "all prefixes in the forward of the response itself (the log-probability pass)",
    PER_PREFIX: "each prefix in a forward of its own; 25 steps cost about 13 forwards of each correct response",
}
TOLERANCE = 1e-4
# What a model's code may raise when a backend uses it in a way that it was not written for.
MODEL_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True)
class ScoringBackend:
    """How prefixes are scored."""

    name: str  # shared_prefix or per_prefix
    obstacle: str | None = None  # why the cheaper backend is not exact

    def __str__(self) -> str:
        """One line: the backend, its cost and the reason."""
        reason = "" if self.obstacle is None else f", because {self.obstacle}"
        return f"scoring {COSTS[self.name]} ({self.name}){reason}"

    def score(
        self,
        model: Callable[..., Any],
        config: PretrainedConfig,
        sequences: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        packed: bool = False,
        agree: Callable[[int], int] = int,
    ) -> list[Tensor]:
        """Score the requests in forwards of their own; arguments and result as in
        `score_shared_prefix`.
        """
        if self.name == SHARED_PREFIX:
            return score_shared_prefix(
                model, config, sequences, attention_mask, requests, packed, agree
            )
        scores = []
        for request in requests:
            present = attention_mask[request.row].bool()
            lengths = present.cumsum(-1)[list(request.prefix_ends)].tolist()
            scores.append(
                score_per_prefix(
                    model, sequences[request.row][present], lengths, request.branch
                ).cpu()
            )
        return scores


def find_backend(
    config: PretrainedConfig,
    build: Callable[[PretrainedConfig], PreTrainedModel],
    wanted: str = SHARED_PREFIX,
    device: torch.device | str = "cpu",
    packed: bool = False,
) -> ScoringBackend:
    """Find whether prefixes can be scored together, by a trial on a small random model of the same
    architecture.

    `build` makes it, with the model's own code. `wanted` is `scoring` of RunConfig; "per_prefix" is
    taken without a trial. `packed`, the forward that the branches ride in has all responses packed
    into one row.
    """
    if wanted == PER_PREFIX:
        return ScoringBackend(PER_PREFIX)
    warn_if_untested(
        "transformers", "a scoring backend is only chosen if it is exact on a small model"
    )
    batches = [trial_batch(left, device) for left in (False, True)]
    for narrow in (True, False):
        try:
            model = small_model(config, build, device, narrow)
            expected = _scores(ScoringBackend(PER_PREFIX), model, batches)
            break
        except MODEL_ERRORS as error:
            reason = f"no small model of its architecture could be run ({first_line(error)})"
    else:
        return ScoringBackend(PER_PREFIX, reason)
    kind = f"branching a small {type(model).__name__}"
    try:
        difference = float(
            (_scores(ScoringBackend(SHARED_PREFIX), model, batches, packed) - expected).abs().max()
        )
    except MODEL_ERRORS as error:
        return ScoringBackend(
            PER_PREFIX, f"{kind} failed ({type(error).__name__}: {first_line(error)})"
        )
    if difference < TOLERANCE:
        return ScoringBackend(SHARED_PREFIX)
    return ScoringBackend(PER_PREFIX, f"{kind} is off by {difference:.1e} nats")


Batch = tuple[Tensor, Tensor, list[ScoreRequest]]  # (B, T) ids, (B, T) mask, requests


def _scores(
    backend: ScoringBackend, model: PreTrainedModel, batches: list[Batch], packed: bool = False
) -> Tensor:
    scores = [backend.score(model, model.config, *batch, packed=packed) for batch in batches]
    return torch.cat([torch.cat(batch) for batch in scores])


def trial_batch(left: bool, device: torch.device | str) -> Batch:
    """Two responses of unequal lengths, padded on one side."""
    generator = torch.Generator().manual_seed(0)
    lengths, width = (90, 37), 92
    ends = ((0, 21, 33, 77, 88, 89), (4, 13, 36))
    ids = torch.randint(0, WORDS, (2, width), generator=generator)
    mask = torch.zeros_like(ids)
    requests = []
    for row, length in enumerate(lengths):
        offset = width - length if left else 0
        mask[row, offset : offset + length] = 1
        branch = AnswerBranch(tuple(range(3, 9 + row)), (False, False) + (True,) * (4 + row))
        requests.append(ScoreRequest(row, tuple(end + offset for end in ends[row]), branch))
    return ids.to(device), mask.to(device), requests
