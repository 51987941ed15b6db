"""Scoring backends: find the cheapest that is exact, by a trial on a small random model of the same architecture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from openrlhf_swap.errors import first_line
from openrlhf_swap.packages.versions import warn_if_untested
from openrlhf_swap.scoring.answer import AnswerBranch
from openrlhf_swap.scoring.per_prefix import score_per_prefix
from openrlhf_swap.scoring.segments import score_segments
from openrlhf_swap.scoring.shared_prefix import ScoreRequest, score_shared_prefix, unpadded
from openrlhf_swap.scoring.small_model import WORDS, small_model

SHARED_PREFIX, SEGMENTS, PER_PREFIX = "shared_prefix", "segments", "per_prefix"
COSTS = {
    SHARED_PREFIX: "all prefixes in one short forward after that of the response (the log-probability pass)",
    SEGMENTS: "all prefixes in one more pass over each correct response, in segments that end where steps end",
    PER_PREFIX: "each prefix in a forward of its own; 25 steps cost about 13 forwards of each correct response",
}
TOLERANCE = 1e-4
# What a model's code may raise when a backend uses it in a way that it was not written for.
MODEL_ERRORS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


@dataclass(frozen=True)
class ScoringBackend:
    """How prefixes are scored.

    Attributes:
        name: shared_prefix, segments or per_prefix.
        obstacle: why no cheaper backend is exact; None for the cheapest.
    """

    name: str
    obstacle: str | None = None

    def __str__(self) -> str:
        """One line: the backend, its cost and the reason."""
        reason = "" if self.obstacle is None else f", because {self.obstacle}"
        return f"scoring {COSTS[self.name]} ({self.name}){reason}"


def find_backend(
    config: PretrainedConfig,
    build: Callable[[PretrainedConfig], PreTrainedModel],
    wanted: str = SHARED_PREFIX,
    device: torch.device | str = "cpu",
    packed: bool = False,
) -> ScoringBackend:
    """Find the cheapest exact backend by a trial on a small random model of the same architecture.

    Args:
        config: the model's configuration.
        build: builds a model from a configuration, with the model's own code.
        wanted: `scoring` of RunConfig; "per_prefix" is taken without a trial.
        device: where the trial runs.
        packed: whether the forward whose keys the branches share has all rows packed into one.
    """
    if wanted == PER_PREFIX:
        return ScoringBackend(PER_PREFIX)
    warn_if_untested("transformers", "a scoring backend is only chosen if it is exact on a small model")
    batches = [_batch(left, device) for left in (False, True)]
    for narrow in (True, False):
        try:
            model = small_model(config, build, device, narrow)
            expected = [_per_prefix(model, *batch) for batch in batches]
            break
        except MODEL_ERRORS as error:
            reason = f"no small model of its architecture could be run ({first_line(error)})"
    else:
        return ScoringBackend(PER_PREFIX, reason)
    obstacle = None
    for name, score in ((SHARED_PREFIX, partial(_shared_prefix, packed)), (SEGMENTS, _segments)):
        problem = _problem(score, model, batches, expected)
        if problem is None:
            return ScoringBackend(name, obstacle)
        obstacle = obstacle or problem
    return ScoringBackend(PER_PREFIX, obstacle)


Batch = tuple[Tensor, Tensor, list[ScoreRequest]]  # (B, T) ids, (B, T) mask, requests


def _problem(
    score: Callable[..., list[Tensor]], model: PreTrainedModel, batches: list[Batch], expected: list[list[Tensor]]
) -> str | None:
    """What is wrong with a backend, or None."""
    kind = type(model).__name__
    try:
        scores = [score(model, *batch) for batch in batches]
    except MODEL_ERRORS as error:
        return f"branching the cache of a small {kind} failed ({type(error).__name__}: {first_line(error)})"
    differences = torch.cat([a - b for x, y in zip(scores, expected, strict=True) for a, b in zip(x, y, strict=True)])
    largest = float(differences.abs().max())
    if largest < TOLERANCE:
        return None
    return f"branching the cache of a small {kind} is off by {largest:.1e} nats"


def _batch(left: bool, device: torch.device | str) -> Batch:
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


def _shared_prefix(
    packed: bool, model: PreTrainedModel, ids: Tensor, mask: Tensor, requests: list[ScoreRequest]
) -> list[Tensor]:
    return score_shared_prefix(model, model.config, ids, mask, requests, packed=packed)


def _segments(model: PreTrainedModel, ids: Tensor, mask: Tensor, requests: list[ScoreRequest]) -> list[Tensor]:
    return [score_alone(SEGMENTS, model, model.config, ids, mask, request) for request in requests]


def _per_prefix(model: PreTrainedModel, ids: Tensor, mask: Tensor, requests: list[ScoreRequest]) -> list[Tensor]:
    return [score_alone(PER_PREFIX, model, model.config, ids, mask, request) for request in requests]


def score_alone(
    backend: str,
    model: Callable[..., object],
    config: PretrainedConfig,
    sequences: Tensor,
    attention_mask: Tensor,
    request: ScoreRequest,
) -> Tensor:
    """Score one request with a backend that takes one response at a time; (K+1,) on the CPU, as `score_branches`."""
    row, alone = unpadded(request, sequences, attention_mask)
    lengths = [end + 1 for end in alone.prefix_ends]
    if backend == SEGMENTS:
        return score_segments(model, config, row[0], lengths, request.branch).cpu()
    return score_per_prefix(model, row[0], lengths, request.branch).cpu()
