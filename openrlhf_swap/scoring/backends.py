"""Two ways to score prefixes: together where that is exact, else one forward for each.

A trial on a small random model of the same architecture decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS
from openrlhf_swap.errors import first_line
from openrlhf_swap.packages.versions import warn_if_untested
from openrlhf_swap.scoring.answer import (
    AnswerBranch,
    Readings,
    ScoreRequest,
    read_per_prefix,
    row_positions,
)
from openrlhf_swap.scoring.shared_prefix import read_shared_prefix
from openrlhf_swap.scoring.small_model import WORDS, small_model

SHARED_PREFIX = "shared_prefix"
PER_PREFIX = "per_prefix"
COSTS = {
    SHARED_PREFIX: "all prefixes in the forward of the response itself (the log-probability pass)",
    PER_PREFIX: "each prefix in a forward of its own; 25 steps cost about 13 forwards of each "
    "correct response",
}
TOLERANCE = 1e-4
# The trial's rows, and the ends of its responses' prefixes by the response's length.
TRIAL_WIDTH = 92
TRIAL_STEPS = {90: (0, 21, 33, 77, 88, 89), 37: (4, 13, 36)}
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
    """A way to score prefixes."""

    name: str  # shared_prefix or per_prefix
    obstacle: str | None = None  # why the cheaper backend is not exact

    def __str__(self) -> str:
        """One line: the backend, its cost and the reason."""
        reason = "" if self.obstacle is None else f", because {self.obstacle}"
        return f"scoring {COSTS[self.name]} ({self.name}){reason}"

    @property
    def obstacle_to_branches(self) -> str | None:
        """Why a model's prefixes are not scored together; None if they are."""
        if self.name == SHARED_PREFIX:
            return None
        return self.obstacle or f"--swap.scoring is {PER_PREFIX}"

    def read(
        self,
        model: nn.Module,
        sequences: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        **how: Any,
    ) -> Readings:
        """Read the requests' scores and needs in forwards of their own.

        Arguments and result are those of `read_shared_prefix`; without the shared prefix there are
        no needs, and `how` changes nothing.
        """
        if self.name == SHARED_PREFIX:
            return read_shared_prefix(model, sequences, attention_mask, requests, **how)
        positions = row_positions(attention_mask)
        answers = []
        for request in requests:
            assert request.branch is not None
            scores = []
            for place in request.prefix_ends:
                start = place - int(positions[request.row, place])  # of the token's context
                prefix = sequences[request.row, start : place + 1]
                scores.append(read_per_prefix(model, prefix, [len(prefix)], request.branch))
            answers.append(torch.cat(scores).cpu())
        return {ANSWER_LOGPROBS.name: answers}


def find_backend(
    model: PreTrainedModel, wanted: str = SHARED_PREFIX, packed: bool = False
) -> ScoringBackend:
    """Find whether prefixes can be scored together, by a trial on a small random model.

    That one has the model's architecture and its device, where a family may run kernels of its own.
    The other arguments are those of `try_backend`.
    """
    return try_backend(lambda: small_model(model.config, type(model), model.device), wanted, packed)


def try_backend(
    make_small: Callable[[], PreTrainedModel], wanted: str = SHARED_PREFIX, packed: bool = False
) -> ScoringBackend:
    """Find whether prefixes can be scored together by a small random model of the architecture.

    `make_small` makes it, or raises `MODEL_ERRORS`. `wanted` is `scoring` of RunConfig;
    "per_prefix" is taken without a trial. `packed` says that the forward in which the branches ride
    has all responses packed into one row.
    """
    if wanted == PER_PREFIX:
        return ScoringBackend(PER_PREFIX)
    consequence = "a scoring backend is only chosen if it is exact on a small model"
    warn_if_untested("transformers", consequence)
    try:
        model = make_small()
        expected = _scores(ScoringBackend(PER_PREFIX), model)
    except MODEL_ERRORS as error:
        reason = f"no small model of its architecture could be run ({first_line(error)})"
        return ScoringBackend(PER_PREFIX, reason)
    kind = f"branching a small {type(model).__name__}"
    try:
        found = _scores(ScoringBackend(SHARED_PREFIX), model, packed)
    except MODEL_ERRORS as error:
        reason = f"{kind} failed ({type(error).__name__}: {first_line(error)})"
        return ScoringBackend(PER_PREFIX, reason)
    difference = float((found - expected).abs().max())
    if difference < TOLERANCE:
        return ScoringBackend(SHARED_PREFIX)
    return ScoringBackend(PER_PREFIX, f"{kind} is off by {difference:.1e} nats")


def _scores(backend: ScoringBackend, model: PreTrainedModel, packed: bool = False) -> Tensor:
    """The scores of two responses of unequal lengths, padded on the right, and on the left."""
    generator = torch.Generator().manual_seed(0)
    scores = []
    for left in (False, True):
        ids = torch.randint(0, WORDS, (2, TRIAL_WIDTH), generator=generator).to(model.device)
        mask = torch.zeros_like(ids)
        requests = []
        for row, (length, ends) in enumerate(TRIAL_STEPS.items()):
            offset = TRIAL_WIDTH - length if left else 0
            mask[row, offset : offset + length] = 1
            answer = range(3, 9 + row)
            scored = [token >= 5 for token in answer]
            branch = AnswerBranch(tuple(answer), tuple(scored))
            prefix_ends = tuple(offset + end for end in ends)
            requests.append(ScoreRequest(row, prefix_ends, branch))
        found = backend.read(model, ids, mask, requests, packed=packed)
        scores += found[ANSWER_LOGPROBS.name]
    return torch.cat(scores)
