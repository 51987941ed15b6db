"""What the rest of a response needs of each step: hide the step, and read again what follows.

n_k is the most that any of the next W steps loses without step k, or the answer where the window
reaches past the last step; in nats per token. A step is hidden by a branch (`branches.py`) that
repeats the tokens after step k, sees the response before step k, and keeps all positions. The keys
and values before step k are those of the pass over the rows, so that a hidden step costs the tokens
that follow it and no more.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.signals import NEED
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.scoring.answer import ScoreRequest
from openrlhf_swap.scoring.attention import BranchAttention, RowKeys
from openrlhf_swap.scoring.branches import Branch, Layout, Rows
from openrlhf_swap.scoring.mixers import mixers_of

MAX_TOKENS = 2**13  # of branches in a pass, unless one branch has more
# A rank without hidden steps takes part in a pass with it.
_IDLE_BRANCH = Branch(first=0, end=1, copied=range(0), given=(0, 0), scored=[[1]])


def check_can_hide_steps(model: Any, obstacle: str | None) -> None:
    """Raise ConfigError for a model from which a step cannot be hidden.

    `obstacle` says why its prefixes cannot be scored together, if so.
    """
    if obstacle is None and mixers_of(model):
        obstacle = f"a {type(model).__name__} has recurrent layers, whose states keep all tokens"
    if obstacle is not None:
        raise ConfigError(
            f"steps cannot be hidden to read {NEED.name}, because {obstacle}; "
            "use --swap.step_reward gain, which needs no more than scores"
        )


@dataclass(frozen=True)
class StepColumns:
    """The columns of each step: its first, after its last, and after its last generated one."""

    starts: list[int]
    stops: list[int]
    generated: list[int]

    @classmethod
    def of(cls, request: ScoreRequest, rows: Rows) -> "StepColumns":
        """Find the columns; a step is followed by what it observed, which is not generated."""
        bounds = [rows.column(request.row, end) + 1 for end in request.prefix_ends]
        generated = [rows.column(request.row, end) + 1 for end in request.own_ends]
        return cls(bounds[:-1], bounds[1:], generated)

    @property
    def all(self) -> range:
        """The columns of all steps."""
        return range(self.starts[0], self.stops[-1])


@dataclass(frozen=True)
class HiddenStep:
    """A branch without a step, and the number of tokens in each group that it reads again."""

    branch: Branch
    counts: list[int]


def hidden_steps(request: ScoreRequest, rows: Rows) -> list[HiddenStep]:
    """A hidden step for each step of a response.

    The groups are the steps of the window, and at last the answer where the window reaches it.
    Their first token right behind the hidden step is predicted by that step itself, which sees
    itself: it counts, and loses nothing.
    """
    answer = request.branch
    assert answer is not None
    columns = StepColumns.of(request, rows)
    steps = len(columns.starts)
    window = request.need_window or steps
    first, _ = rows.spans[request.row]
    hidden = []
    for step, begin in enumerate(columns.stops):
        later = range(step + 1, min(steps, step + 1 + window))
        copied = range(begin, columns.stops[later.stop - 1])
        given: Sequence[int] = ()
        groups: list[Sequence[int]] = [
            range(columns.starts[other] - begin, columns.generated[other] - begin)
            for other in later
        ]
        if step + window >= steps:
            given = answer.ids
            groups.append([len(copied) + place for place in answer.places])
        scored = [[place for place in group if place > 0] for group in groups]
        branch = Branch(first, columns.starts[step], copied, given, scored)
        hidden.append(HiddenStep(branch, [len(group) for group in groups]))
    return hidden


class HiddenPass:
    """A forward over branches alone, on the keys and values of a pass over the rows.

    `predicting` and `targets` are as in `BranchedRows`; `tokens`, those of rows, is 0.
    """

    tokens = 0
    reads_entropies = False

    def __init__(
        self,
        branches: Sequence[Branch],
        keys: RowKeys,
        row_ids: Tensor,
    ) -> None:
        """Take the branches, the rows' keys and values, and the (columns,) ids of the rows."""
        self._layout = layout = Layout(branches, 1, row_ids.device)
        self._attention = BranchAttention(0, layout, keys)
        self._ids = layout.ids(row_ids)
        self.predicting = (torch.zeros_like(layout.predicting), layout.predicting)
        self.targets = layout.targets(row_ids)

    def inputs(self) -> dict[str, Any]:
        """The model's arguments."""
        return {
            "input_ids": self._ids[None],
            "position_ids": self._layout.position[None],
            "attention_mask": None,
            "use_cache": False,
        }

    @contextmanager
    def branching(self) -> Iterator[None]:
        """Let the model run on such inputs inside the block."""
        with self._attention.replacing():
            yield


@dataclass(frozen=True)
class PlainPlaces:
    """Where the pass over the rows has the log-probabilities of a response with all of its steps.

    A step's token in column c is at `shift` + c; the answer's after the last step end at
    `answer_end`.
    """

    shift: int
    answer_end: int

    def of(self, branch: Branch) -> list[int]:
        """The places of the tokens that a branch predicts; the answer's are its last ones."""
        copied = [place for place in branch.predicted if place < len(branch.copied)]
        answered = len(branch.predicted) - len(copied)
        of_steps = [self.shift + branch.copied[place] for place in copied]
        return [*of_steps, *range(self.answer_end - answered, self.answer_end)]


def read_needs(
    requests: Sequence[ScoreRequest],
    rows: Rows,
    plain: Tensor,
    places: Sequence[PlainPlaces],
    run: Callable[[Sequence[Branch]], Tensor],
    agree: Callable[[int], int] = int,
) -> list[Tensor]:
    """(K,) float64 n_1..n_K of each request.

    `plain` are the (m,) log-probabilities of the pass over the rows, in which each response has its
    `places`. `run` runs a pass over branches and returns the log-probabilities of its targets at
    temperature 1. `agree` maps this rank's number of passes to the largest of all ranks in
    lockstep.
    """
    hidden = [hidden_steps(request, rows) for request in requests]
    running = [each.branch for own in hidden for each in own if each.branch.length > 0]
    parts = batches(running)
    parts += [[_IDLE_BRANCH]] * (agree(len(parts)) - len(parts))
    passes = [run(part).cpu() for part in parts]
    log_probs = torch.cat([torch.zeros(0), *passes]).double()
    needs = []
    for own, own_places in zip(hidden, places, strict=True):
        of_tokens = [place for each in own for place in own_places.of(each.branch)]
        drops = plain[of_tokens].double() - log_probs[: len(of_tokens)]
        log_probs = log_probs[len(of_tokens) :]
        needs.append(_largest_losses(own, drops))
    return needs


def batches(branches: Sequence[Branch]) -> list[list[Branch]]:
    """Consecutive branches that run in one pass."""
    parts: list[list[Branch]] = []
    tokens = 0
    for branch in branches:
        if not parts or tokens + branch.length > MAX_TOKENS:
            parts.append([])
            tokens = 0
        parts[-1].append(branch)
        tokens += branch.length
    return parts


def _largest_losses(hidden: Sequence[HiddenStep], drops: Tensor) -> Tensor:
    """n_k from the drops of log-probability of all tokens that are predicted without step k."""
    sizes = torch.tensor([len(group) for each in hidden for group in each.branch.scored])
    counts = torch.tensor([count for each in hidden for count in each.counts])
    losses = torch.segment_reduce(drops, "sum", lengths=sizes) / counts
    by_step = torch.split(losses, [len(each.counts) for each in hidden])
    return torch.stack([of_groups.max() for of_groups in by_step])
