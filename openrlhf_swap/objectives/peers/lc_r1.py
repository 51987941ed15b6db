"""LC-R1, after github.com/zxiangx/LC-R1 (2025-06-25).

How much of a thought is needed is judged by a model there, and here by a function that a flag
names. The default is a rule (the first place where the reference answer appears), so results are
not comparable with the paper's.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, ObjectiveError
from openrlhf_swap.objectives.base import Batch, Objective, ResponseReader, Rollout, setting
from openrlhf_swap.objectives.group_statistics import Span, fill_spans, longest
from openrlhf_swap.packages import import_named
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rollouts.reader import tokens_for_each

_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)|$")
LITTLE = 1e-4  # the released code adds it to what it divides by


def first_right_answer(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """Tokens of a thought up to the end of the sentence that first names the answer, or 0."""
    text = reader.text(thought)
    found = re.search(rf"(?<![\w.]){re.escape(strip_answer(answer))}(?!\w|\.\d)", text)
    if found is None:
        return 0
    end = _SENTENCE_END.search(text, found.end())
    assert end is not None  # at the latest, the text's own end
    return tokens_for_each(thought, [end.end()], reader)[0]


class Extracting(Objective):
    """Asks a function how much of a thought is needed."""

    boxes_answers = True
    extractor: str = setting(
        "openrlhf_swap.objectives.peers.lc_r1:first_right_answer",
        "module:function (thought ids, answer, reader) -> thinking tokens up to the first correct "
        "answer, or 0",
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        flag = f"--swap.{self.name}.extractor"
        self._flag = f"{flag} is {self.extractor!r}"
        self._extract: Callable[..., int] = import_named(self.extractor, flag)
        if not callable(self._extract):
            raise ConfigError(f"{self._flag}, which is not a function; use module:function")

    def needed(self, thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
        """Tokens of the thought that are needed, from 0 (none of it names the answer) to all."""
        kept = self._extract(list(thought), answer, reader)
        # As the end of a slice, a negative number would pass in silence.
        if kept not in range(len(thought) + 1):
            raise ObjectiveError(
                f"{self._flag}, which returned {kept!r}; expected tokens from 0 to "
                f"{len(thought)}: fix the function"
            )
        return int(kept)


class LCR1(Extracting):
    """A = R - mean, R = [one `</think>`] + c + weight (1 - L/longest correct L); + rho at its end.

    Correct thoughts are cut where they reach the answer; rho, at `</think>`, is the share that was
    cut, or -1 where a correct thought shows no valid part. Without a correct response of the group
    R has no length term. Correct here asks for one `</think>`; L does not count the end token.
    """

    penalises_long_wrong = True
    normaliser = "centre"
    needs_marks = True
    reshapes_responses = True
    length_weight: float = setting(1.0, "weight of the length reward")
    compress_weight: float = setting(1.0, "weight of the reward at </think>")

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """A correct response without what follows its valid thinking: `</think>` and the answer."""
        ids = list(rollout.response_ids)
        if not rollout.correct or reader.text(ids).count(reader.end_of_thought) != 1:
            return rollout
        thought = reader.reasoning_length(ids)
        kept = self.needed(ids[:thought], rollout.answer, reader)
        if kept:
            ids = ids[:kept] + ids[thought:]
        numbers = {"lc_r1_thought": float(thought), "lc_r1_kept": float(kept)}
        return replace(rollout, response_ids=ids, metadata={**rollout.metadata, **numbers})

    def rewards(self, batch: Batch) -> Tensor:
        end = batch.reader.end_of_thought
        formatted = batch.each_text(lambda text: text.count(end) == 1).bool()
        without_end = batch.reader.without_end
        lengths = batch.each(lambda rollout: len(without_end(rollout.response_ids)))
        limit = longest(lengths, formatted & batch.correct)
        shortness = 1 - lengths / (limit + LITTLE)
        shortness[limit.isinf().expand_as(shortness)] = 0.0
        return formatted.double() + batch.correct + self.length_weight * shortness

    def token_advantages(self, batch: Batch) -> Tensor:
        return fill_spans(batch, 0.0, self._at_the_end)

    def _at_the_end(self, rollout: Rollout) -> Iterator[Span]:
        if "lc_r1_kept" in rollout.metadata:
            thought = rollout.metadata["lc_r1_thought"]
            kept = rollout.metadata["lc_r1_kept"]
            share_cut = 1 - kept / (thought + LITTLE) if kept else -1.0
            end = int(kept or thought)
            yield Span(end, end + 1, self.compress_weight * share_cut)
