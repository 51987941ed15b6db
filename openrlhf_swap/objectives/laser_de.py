"""LASER-DE: LASER-D, which also lets a wrong but orderly answer explore beyond the target.

After github.com/hkust-nlp/Laser (2025-05-22); that a repetitive response earns no bonus is only in
its code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from openrlhf_swap.objectives.base import Batch
from openrlhf_swap.objectives.laser import WRONG
from openrlhf_swap.objectives.laser_d import LaserD


def is_repetitive(ids: Sequence[int]) -> bool:
    """A 4-gram seen three times or more with a gap below a third of the length, or eight tokens twice in a row."""
    seen = defaultdict(list)
    for position in range(len(ids) - 3):
        seen[tuple(ids[position : position + 4])].append(position)
    for positions in seen.values():
        if len(positions) >= 3 and any(3 * (b - a) < len(ids) for a, b in pairwise(positions)):
            return True
    return any(ids[i : i + 8] == ids[i + 8 : i + 16] for i in range(len(ids) - 15))


class LaserDE(LaserD):
    """As LASER-D; a wrong, formatted, longer, orderly response earns the bonus too. Flags `--swap.laser_de.*`."""

    def rewards(self, batch: Batch) -> Tensor:
        """Base score and either bonus."""
        scores = self.base_scores(batch)
        orderly = batch.each(lambda rollout: not is_repetitive(list(rollout.response_ids))).bool()
        explores = (scores == WRONG) & (batch.lengths > self.targets(scores, batch)) & orderly
        return super().rewards(batch) + self.settings.bonus * explores
