"""The numbers of the steps of a response; each is declared here, once.

The policy gives them (`openrlhf_swap.scoring`), or an agent's environment. A signal travels by its
name (`Rollout.signals`, `StepTrace.signals`, `StepBatch.signals`) and is read in an objective.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # the names are read without torch
    from torch import Tensor


@dataclass(frozen=True)
class Signal:
    """A number of each step or of each prefix of a response.

    `per` is "step" for K values, one of each step, and "prefix" for K+1 values: one of the prompt
    alone, and one after each step. `only_correct` says that incorrect responses do not have it,
    `has_gaps` that it is NaN where it was not read.
    """

    name: str
    per: Literal["step", "prefix"]
    only_correct: bool = True
    has_gaps: bool = False

    def count(self, steps: int) -> int:
        """The number of values of a response with so many steps."""
        return steps + 1 if self.per == "prefix" else steps


# l_0..l_K: mean log-probability of the answer's tokens after each prefix, in nats per token.
ANSWER_LOGPROBS = Signal("answer_logprobs", "prefix")
# n_k: what later steps, or the answer, lose at most when step k is hidden, in nats per token.
# NaN for a step that was not hidden (`--swap.need_every`).
NEED = Signal("need", "step", has_gaps=True)
# H_k: mean entropy of the tokens of each step, in nats, at the rollouts' temperature: as they were
# drawn, which is what the authors of InfoDensity and ETR take.
ENTROPY = Signal("entropy", "step", only_correct=False)
# e_k: an agent's reward for the turn that ends with step k, 0 within a turn.
TURN_REWARD = Signal("turn_reward", "step", only_correct=False)

SIGNALS = {signal.name: signal for signal in (ANSWER_LOGPROBS, NEED, ENTROPY, TURN_REWARD)}


def numbers_of(values: "Tensor") -> list[float | None]:
    """The numbers of a signal; None where it was not read."""
    return [None if math.isnan(value) else value for value in values.tolist()]
