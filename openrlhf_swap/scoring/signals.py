"""From rollouts to requests of signals, and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, SIGNALS
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.scoring.answer import AnswerBranch, Readings, ScoreRequest


def names_of(rollout: Rollout, names: Sequence[str]) -> tuple[str, ...]:
    """Those of the names whose signals a response has; its steps need not be known."""
    if rollout.correct:
        return tuple(names)
    return tuple(name for name in names if not SIGNALS[name].only_correct)


@dataclass(frozen=True)
class WantedSignals:
    """The signals that an objective, or a user, wants of responses.

    `names` are names of `algorithm.signals`; `branch` makes close template and answer of a
    reference answer. `need` is read beside the answer's scores, and is wanted together with them;
    `need_window` and `need_every` are as in `ScoreRequest`.
    """

    names: tuple[str, ...]
    branch: Callable[[str], AnswerBranch]
    need_window: int = 0
    need_every: int = 1

    def request(self, row: int, rollout: Rollout) -> ScoreRequest | None:
        """The request for a response in that row of a batch, padded on the right.

        None if nothing is wanted of the response.
        """
        names = names_of(rollout, self.names)
        if not rollout.step_ends:
            names = tuple(name for name in names if SIGNALS[name].per == "prefix")
        if not names:
            return None
        scores_answer = ANSWER_LOGPROBS.name in names
        return ScoreRequest(
            row=row,
            prefix_ends=rollout.prefix_ends,
            branch=self.branch(rollout.answer) if scores_answer else None,
            wanted=names,
            generated_ends=rollout.generated_ends if rollout.observations else (),
            need_window=self.need_window,
            need_every=self.need_every,
        )


def by_request(requests: Sequence[ScoreRequest], found: Readings) -> list[dict[str, Tensor]]:
    """The signals of each request, from what was found by name for the requests that want it."""
    values = {name: iter(tensors) for name, tensors in found.items()}
    signals = []
    for request in requests:
        of_one = {name: next(values[name]) for name in request.wanted}
        signals.append(of_one)
    return signals
