"""LC-R1 and DECS: what a thought says after its first correct answer is cut off, or earns less.

How much of a thought is needed is judged by a model there, and here by a function that a flag
names. The default is a rule (the first place where the reference answer appears), so results are
not comparable with the papers'.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.errors import ConfigError, ObjectiveError
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_rewards import Span, fill_spans
from openrlhf_swap.packages import import_named
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rollouts.rollout import Batch, ResponseReader, Rollout, tokens_for_each

_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")


def first_right_answer(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """Tokens of a thought up to the end of the sentence that first names the answer; 0 if none
    does.
    """
    text = reader.text(thought)
    found = re.search(rf"(?<![\w.]){re.escape(strip_answer(answer))}(?!\w|\.\d)", text)
    if found is None:
        return 0
    end = _SENTENCE_END.search(text, found.end())
    return tokens_for_each(thought, [end.end() if end else len(text)], reader)[0]


class _Extracting(Objective):
    boxes_answers = True
    extractor: str = setting(
        "openrlhf_swap.objectives.lc_r1:first_right_answer",
        "module:function (thought ids, answer, reader) -> thinking tokens up to the first correct answer, or 0",
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        flag = f"--swap.{self.name}.extractor"
        self._flag = f"{flag} is {self.extractor!r}"
        self._extractor: Callable[[Sequence[int], str, ResponseReader], int] = import_named(
            self.extractor, flag
        )
        if not callable(self._extractor):
            raise ConfigError(f"{self._flag}, which is not a function; use module:function")

    def _needed(self, thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
        """Tokens of the thought that are needed, from 0 (none of it names the answer) to all of
        them.
        """
        kept = self._extractor(thought, answer, reader)
        if kept not in range(
            len(thought) + 1
        ):  # as a slice, a negative number would pass in silence
            raise ObjectiveError(
                f"{self._flag}, which returned {kept!r}; expected tokens from 0 to {len(thought)}: fix the function"
            )
        return int(kept)


class LCR1(_Extracting):
    """R = [one `</think>`] + c + length_weight (1 - L/longest correct L), centred; plus rho at
    `</think>`.

    Correct thoughts are cut where they reach the answer; rho is the share that was cut. After
    github.com/zxiangx/LC-R1 (2025-06-25).
    """

    normaliser = "centre"
    reshapes_responses = True
    length_weight: float = setting(1.0, "of the length reward")
    compress_weight: float = setting(1.0, "of the reward at </think>")

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """A correct response without what follows its valid thinking: think[:v] + `</think>` and
        the answer.
        """
        ids = list(rollout.response_ids)
        thought = reader.reasoning_length(ids)
        correct = rollout.correct and reader.text(ids).count(reader.end_of_thought) == 1
        kept = self._needed(ids[:thought], rollout.answer, reader) if correct else 0
        numbers = {
            "lc_r1_correct": float(correct),
            "lc_r1_thought": float(thought),
            "lc_r1_kept": float(kept),
        }
        edited = ids[:kept] + ids[thought:] if kept else ids
        return replace(rollout, response_ids=edited, metadata={**rollout.metadata, **numbers})

    def rewards(self, batch: Batch) -> Tensor:
        end = batch.reader.end_of_thought
        formatted = batch.each_text(lambda text: text.count(end) == 1)
        base = formatted + batch.correct.double()
        correct = base == 2
        # The released code counts the tokens before the end token.
        lengths = batch.each(
            lambda r: len(r.response_ids) - (r.response_ids[-1] == batch.reader.end_token)
        )
        longest_correct = torch.where(correct, lengths, 0.0).amax(-1, keepdim=True)
        shortness = torch.where(
            correct.any(-1, keepdim=True), 1 - lengths / (longest_correct + 1e-4), 0.0
        )
        return base + self.length_weight * shortness

    def token_advantages(self, batch: Batch) -> Tensor:
        """The share of the thought that was cut, at `</think>`; -1 where a correct thought shows no
        valid part.
        """

        def at_the_end(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            if rollout.metadata["lc_r1_correct"]:
                kept, thought = rollout.metadata["lc_r1_kept"], rollout.metadata["lc_r1_thought"]
                end = int(kept or thought)
                yield (
                    end,
                    end + 1,
                    self.compress_weight * (1 - kept / (thought + 1e-4) if kept else -1.0),
                )

        return fill_spans(batch, 0.0, at_the_end)


class DECS(_Extracting):
    """A_t = (r_t - mean)/sd over the group at the same position; r_t = c (1 + b), 1 + b (1 -
    L/L_max) where redundant.

    Redundant are the tokens of a correct response between its first correct answer and the end of
    its thought. After its code (commit 0d12e53).
    """

    outcome_weight = 0.0
    needs_all_groups = False
    bonus: float = setting(0.1, "b", ge=0)
    max_length: int = setting(16384, "L_max: the run's longest response, in tokens", ge=1)

    def token_advantages(self, batch: Batch) -> Tensor:
        def redundant(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            thought = batch.reader.reasoning_length(rollout.response_ids)
            if rollout.correct:
                kept = self._needed(rollout.response_ids[:thought], rollout.answer, batch.reader)
                yield (
                    kept or thought,
                    thought,
                    1 + self.bonus * (1 - len(rollout.response_ids) / self.max_length),
                )

        rewards = fill_spans(
            batch, batch.correct.double().unsqueeze(-1) * (1 + self.bonus), redundant
        )
        return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-6)
