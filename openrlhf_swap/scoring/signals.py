"""From rollouts to requests of signals, and back."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from openrlhf_swap.algorithm.signals import ANSWER_LOGPROBS, SIGNALS
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.scoring.answer import AnswerBranch, Readings, ScoreRequest


def names_of(rollout: Rollout, names: Sequence[str]) -> tuple[str, ...]:
    """The names without those of signals that an incorrect response lacks."""
    if rollout.correct:
        return tuple(names)
    return tuple(name for name in names if not SIGNALS[name].only_correct)


@dataclass(frozen=True)
class WantedSignals:
    """The signals that an objective, or a user, wants of responses.

    Attributes:
        names: names of `algorithm.signals`; `need` stands beside `answer_logprobs` only.
        branch: makes close template and answer of a reference answer.
        need_window: as in `ScoreRequest`.
        need_every: as in `ScoreRequest`.
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
    """The signals of each request by name: (K) values, one of each step, or (K+1).

    `found` has, by signal, the values of the requests that want it, in order.
    """
    values = {name: iter(tensors) for name, tensors in found.items()}
    signals = []
    for request in requests:
        signals.append({name: next(values[name]) for name in request.wanted})
    return signals
