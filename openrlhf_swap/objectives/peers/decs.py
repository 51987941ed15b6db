"""DECS, after its code (commit 0d12e53), with LC-R1's extractor in the place of its judge."""

from collections.abc import Iterator

from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.objectives.base import Batch, Rollout, setting
from openrlhf_swap.objectives.group_statistics import Span, fill_spans
from openrlhf_swap.objectives.peers.lc_r1 import Extracting


class DECS(Extracting):
    """A_t = (r_t - mean)/sd over the group at t; r_t = c (1 + b), 1 + b (1 - L/L_max) if redundant.

    Redundant are the tokens of a correct response between its first correct answer and the end of
    its thought. Where the group's r_t do not differ, A_t = 0.
    """

    outcome_weight = 0.0
    needs_all_groups = False
    bonus: float = setting(0.1, "b: added to the reward of a correct response", ge=0)
    max_length: int = setting(16384, "L_max: the run's longest response, in tokens", ge=1)

    def token_advantages(self, batch: Batch) -> Tensor:
        def redundant(rollout: Rollout) -> Iterator[Span]:
            if rollout.correct:
                thought = batch.reader.reasoning_length(rollout.response_ids)
                kept = self.needed(rollout.response_ids[:thought], rollout.answer, batch.reader)
                share_left = 1 - len(rollout.response_ids) / self.max_length
                yield Span(kept or thought, thought, 1 + self.bonus * share_left)

        plain = batch.correct.double() * (1 + self.bonus)
        by_position = fill_spans(batch, plain.unsqueeze(-1), redundant).transpose(1, 2)
        return standardise(by_position).transpose(1, 2)
