"""SAS, after its paper and github.com/HanNight/SAS (commit 78b201c)."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Batch, Objective, ResponseReader, Rollout, setting
from openrlhf_swap.objectives.group_statistics import Span, fill_spans


class SAS(Objective):
    """A = GRPO(c), but 0 on the least confident steps of correct responses.

    Of wrong responses it is 0 on the most confident ones. A step ends with a token that holds a
    blank line; its confidence is the mean log-probability of its tokens. Of K steps a correct
    response loses ceil(share K), a wrong one keeps ceil((1 - share) K). An answer in a thought
    that never closes is wrong.

    The released code lacks the parentheses of `len(splits)+1 * share`, and so takes all steps of a
    correct response; this is the paper's reading.
    """

    outcome_weight = 0.0  # `token_advantages` holds all of it
    needs_all_groups = False
    reads_logprobs = True
    share: float = setting(0.3, "share of a response's steps that are not trained on", ge=0, le=1)

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._blank: dict[int, bool] = {}  # token -> whether it holds a blank line

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def token_advantages(self, batch: Batch) -> Tensor:
        advantages = outcome_advantages(self.correct(batch)).unsqueeze(-1)
        return advantages * fill_spans(batch, 1.0, partial(self._silenced, batch.reader))

    def _silenced(self, reader: ResponseReader, rollout: Rollout) -> list[Span]:
        assert rollout.logprobs is not None
        steps = self.steps(rollout.response_ids, reader, rollout.closing)
        confidence = []
        for start, end in steps:
            of_step = rollout.logprobs[start:end].mean()
            confidence.append(float(of_step))
        by_confidence = sorted(range(len(steps)), key=confidence.__getitem__)
        is_closed = reader.is_closed(rollout.response_ids)
        if rollout.correct and is_closed:
            lost = by_confidence[: math.ceil(self.share * len(steps))]
        else:
            kept = math.ceil((1 - self.share) * len(steps))
            lost = by_confidence[kept:]
        spans = []
        for number in lost:
            start, stop = steps[number]
            spans.append(Span(start, stop, value=0.0))
        return spans

    def steps(
        self, ids: Sequence[int], reader: ResponseReader, closing: Sequence[int] = ()
    ) -> list[tuple[int, int]]:
        """The first token of each step of a thought, and the one after its last.

        A thought that was closed at its budget ends before the first of the places `closing`. The
        end token of an open thought belongs to no step. A thought that ends with a blank line has
        no empty step after it; the authors count one.
        """
        closed = reader.thought_length(ids)
        thought = ids[:-1] if closed is None else ids[:closed]
        if closing:
            thought = thought[: closing[0]]
        for token in set(thought) - self._blank.keys():
            self._blank[token] = "\n\n" in reader.text([token])
        ends = [place for place, token in enumerate(thought, 1) if self._blank[token]]
        return list(pairwise(sorted({0, *ends, len(thought)})))
