"""From where in a thought the answer is known, and stays known to its end.

Shapes: `step_mask` is (..., K) bool, True where a step exists. A prefix is the prompt, or ends with
a step.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

KNOWN = math.log(0.5)  # nats per token: on average a token is then likelier than all others


@dataclass(frozen=True)
class Known:
    """After how many steps an answer is known for good, and the share of the thought that follows.

    `steps` is None, and `share` 0, where it is not known at the end.
    """

    steps: int | None
    share: float


def known_in(answer_logprobs: Sequence[float], step_ends: Sequence[int]) -> Known | None:
    """`known_from` and `shares_after_known` of one response.

    None without steps, and for a log-probability that is not finite.
    """
    if not step_ends or not all(map(math.isfinite, answer_logprobs)):
        return None
    logprobs = torch.tensor(answer_logprobs, dtype=torch.float64)
    ends = torch.tensor(step_ends)
    exists = torch.ones_like(ends).bool()
    count = int(known_from(logprobs, exists))
    share = shares_after_known(logprobs, ends, exists).item()
    return Known(count if count <= len(step_ends) else None, share)


def known_from(answer_logprobs: Tensor, step_mask: Tensor) -> Tensor:
    """(...) int64, the number of steps from which on every prefix has l > log .5.

    0 where the prompt is enough, and one more than there are steps where the last prefix has not.
    Takes (..., K+1) l_0..l_K in nats per answer token.
    """
    exists = pad(step_mask, (1, 0), value=True)
    unknown = exists & (answer_logprobs <= KNOWN)
    prefixes = exists.shape[-1]
    number = torch.arange(1, prefixes + 1)
    return torch.where(unknown, number, 0).amax(-1)


def shares_after_known(
    answer_logprobs: Tensor,
    step_ends: Tensor,
    step_mask: Tensor,
) -> Tensor:
    """(...) float64, the share of a thought's tokens that follow once the answer is known.

    It is 0 where the answer is not known at the end, and without steps.
    """
    ends = torch.where(step_mask, step_ends + 1, 0)
    tokens = pad(ends, (1, 1)).cummax(-1).values  # of each prefix, and again of the whole thought
    thought = tokens[..., -1]
    known = known_from(answer_logprobs, step_mask).unsqueeze(-1)
    before = tokens.gather(-1, known).squeeze(-1)
    after = thought - before
    return after.double() / thought.clamp(min=1)
