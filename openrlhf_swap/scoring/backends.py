"""Two ways to score prefixes: together where that is exact, else one forward for each.

A trial on a small random model of the same architecture decides.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from openrlhf_swap.algorithm.signals import ANSWER_ENTROPY, ANSWER_LOGPROBS
from openrlhf_swap.errors import first_line
from openrlhf_swap.packages.versions import warn_if_untested
from openrlhf_swap.scoring.answer import AnswerBranch, ScoreRequest, read_per_prefix
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
Build = Callable[[PretrainedConfig], PreTrainedModel]


@dataclass(frozen=True)
class ScoringBackend:
    """How prefixes are scored."""

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
        model: Callable[..., Any],
        config: PretrainedConfig,
        sequences: Tensor,
        attention_mask: Tensor,
        requests: Sequence[ScoreRequest],
        *how: Any,
        **more: Any,
    ) -> dict[str, list[Tensor]]:
        """Read the requests' scores and needs in forwards of their own.

        Arguments and result are those of `read_shared_prefix`; without the shared prefix there are
        no needs.
        """
        if self.name == SHARED_PREFIX:
            rows = sequences, attention_mask, requests
            return read_shared_prefix(model, config, *rows, *how, **more)
        found: dict[str, list[Tensor]] = {ANSWER_LOGPROBS.name: [], ANSWER_ENTROPY.name: []}
        for request in requests:
            assert request.branch is not None
            present = attention_mask[request.row].bool()
            lengths = present.cumsum(-1)[list(request.prefix_ends)].tolist()
            ids = sequences[request.row][present]
            read = read_per_prefix(model, ids, lengths, request.branch).cpu()
            for signal, values in zip((ANSWER_LOGPROBS, ANSWER_ENTROPY), read.T, strict=True):
                if signal.name in request.signals:
                    found[signal.name].append(values)
        return found


def find_backend(
    config: PretrainedConfig,
    build: Build,
    wanted: str = SHARED_PREFIX,
    device: torch.device | str = "cpu",
    packed: bool = False,
) -> ScoringBackend:
    """Find whether prefixes can be scored together, by a trial on a small random model.

    It has the architecture of `config`; `build` makes it, with the family's own code. `wanted` is
    `scoring` of RunConfig; "per_prefix" is taken without a trial. `packed` says that the forward in
    which the branches ride has all responses packed into one row.
    """
    if wanted == PER_PREFIX:
        return ScoringBackend(PER_PREFIX)
    consequence = "a scoring backend is only chosen if it is exact on a small model"
    warn_if_untested("transformers", consequence)
    try:
        model, expected = _small_model_and_scores(config, build, device)
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


def _small_model_and_scores(
    config: PretrainedConfig,
    build: Build,
    device: torch.device | str,
) -> tuple[PreTrainedModel, Tensor]:
    """The smallest model that runs, narrow or not, and its scores one prefix at a time."""
    slow = ScoringBackend(PER_PREFIX)
    try:
        model = small_model(config, build, device, narrow=True)
        return model, _scores(slow, model)
    except MODEL_ERRORS:
        model = small_model(config, build, device, narrow=False)
        return model, _scores(slow, model)


def _scores(
    backend: ScoringBackend,
    model: PreTrainedModel,
    packed: bool = False,
) -> Tensor:
    """The scores of two responses of unequal lengths, padded on the right, and on the left."""
    generator = torch.Generator().manual_seed(0)
    width = 92
    steps = {90: (0, 21, 33, 77, 88, 89), 37: (4, 13, 36)}  # their ends, by length
    scores = []
    for left in (False, True):
        ids = torch.randint(0, WORDS, (2, width), generator=generator).to(model.device)
        mask = torch.zeros_like(ids)
        requests = []
        for row, (length, ends) in enumerate(steps.items()):
            offset = width - length if left else 0
            mask[row, offset : offset + length] = 1
            branch = AnswerBranch(tuple(range(3, 9 + row)), (False,) * 2 + (True,) * (4 + row))
            requests.append(ScoreRequest(row, tuple(end + offset for end in ends), branch))
        found = backend.read(model, model.config, ids, mask, requests, packed=packed)
        scores += found[ANSWER_LOGPROBS.name]
    return torch.cat(scores)
