"""LASER-DE: LASER-D, which also lets a wrong but orderly answer explore beyond the target.

After github.com/hkust-nlp/Laser (2025-05-22). That a repetitive response earns no bonus is only in its code, which
calls its rule on tensors: their n-grams never compare equal, so as it ran the rule never applied.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.laser import WRONG, base_scores
from openrlhf_swap.objectives.laser_d import LaserD
from openrlhf_swap.rollouts.batch import Batch


def is_repetitive(ids: Sequence[int]) -> bool:
    """Whether a pattern of tokens comes back, by the released code's rule as it is written.

    n is 2 below 30 tokens, 3 below 100, else 4. A pattern comes back when an n-gram (for n > 2 not of one token alone)
    is there twice, from 200 tokens on three times, with two neighbours closer than a third of the length; or when 2n
    tokens are there twice at any distance.
    """
    length = len(ids)
    if length <= 8:
        return False
    n = 2 if length < 30 else 3 if length < 100 else 4
    least = 2 if length < 200 else 3
    places = defaultdict(list)
    for start in range(length - n + 1):
        gram = tuple(ids[start : start + n])
        if n == 2 or len(set(gram)) > 1:
            places[gram].append(start)
    for found in places.values():
        if len(found) >= least and any(after - before < length // 3 for before, after in pairwise(found)):
            return True
    longer = [tuple(ids[start : start + 2 * n]) for start in range(length - 2 * n + 1)]
    return length >= 4 * n and len(set(longer)) < len(longer)


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted, longer, orderly response earns the bonus too. Flags `--swap.laser_de.*`."""

    class Settings(LaserD.Settings):
        """Flags `--swap.laser_de.*`."""

        orderly: int = setting(1, "1: no bonus for a repetitive wrong answer; 0: as the released code ran")

    settings: Settings

    def rewards(self, batch: Batch) -> Tensor:
        """Base score and either bonus."""
        scores = base_scores(batch)
        explores = (scores == WRONG) & (batch.lengths > self.targets(scores, batch))
        if self.settings.orderly:
            for group, number in explores.nonzero().tolist():
                explores[group, number] = not is_repetitive(list(batch.groups[group][number].response_ids))
        return self.with_bonus(scores, batch) + self.settings.bonus * explores
