"""From where in a thought the answer is known, and stays known to its end."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

KNOWN = math.log(0.5)  # nats per token: on average a token is then likelier than all others


@dataclass(frozen=True)
class Known:
    """After how many steps an answer is known for good, and the share of the thought that follows.

    `steps` is 0 where the prompt is enough, and None, with a share of 0, where the answer is not
    known at the end.
    """

    steps: int | None
    share: float


def known_in(answer_logprobs: Sequence[float], step_ends: Sequence[int]) -> Known | None:
    """The first of the steps from which on every prefix has l > log .5.

    Takes l_0..l_K in nats per answer token, and the index of each step's last token. None without
    steps or scores, and for a score that is not finite.
    """
    if not step_ends or not answer_logprobs:
        return None
    if not all(map(math.isfinite, answer_logprobs)):
        return None
    steps = 0
    for prefix, logprob in enumerate(answer_logprobs):
        if logprob <= KNOWN:
            steps = prefix + 1
    if steps > len(step_ends):
        return Known(None, 0.0)
    ends = [-1, *step_ends]
    following = ends[-1] - ends[steps]
    thought = ends[-1] + 1
    return Known(steps, following / thought)
