"""LC-R1: correct thoughts are cut where they reach the answer; rewards for the length, and for the cut at `</think>`.

After github.com/zxiangx/LC-R1 (2025-06-25). Its extractor is a fine-tuned 3B model; the default here is a rule (the
first place where the reference answer appears), so results are not comparable to the paper's. As in the code, wrong
answers get the length reward too, and advantages are centred, not divided by a deviation.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.extractor import Extractor
from openrlhf_swap.rewards.answers import strip_answer
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import ResponseReader, tokens_for
from openrlhf_swap.rollouts.rollout import Rollout

_SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")


def first_right_answer(thought: Sequence[int], answer: str, reader: ResponseReader) -> int:
    """Tokens of a thought up to the end of the sentence that first names the answer; 0 if none does."""
    text = reader.text(thought)
    found = re.search(rf"(?<![\w.]){re.escape(strip_answer(answer))}(?!\w|\.\d)", text)
    if found is None:
        return 0
    end = _SENTENCE_END.search(text, found.end())
    return tokens_for(thought, end.end() if end else len(text), reader)


class LCR1(Objective):
    """R = [one `</think>`] + c + length_weight (1 - L/longest correct L), centred; plus rho at `</think>`."""

    boxes_answers = True
    normaliser = "centre"
    reshapes_responses = True

    class Settings(FlagSettings):
        """Flags `--swap.lc_r1.*`."""

        length_weight: float = setting(1.0, "of the length reward")
        compress_weight: float = setting(1.0, "of the reward at </think>")
        extractor: str = setting(
            "openrlhf_swap.objectives.lc_r1:first_right_answer",
            "module:function (thought ids, answer, reader) -> valid thinking tokens",
        )

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._extract = Extractor(self.settings.extractor, f"--swap.{self.name}.extractor")

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """A correct response without what follows its valid thinking: think[:v] + `</think>` and the answer."""
        ids = list(rollout.response_ids)
        thought = reader.reasoning_length(ids)
        correct = rollout.correct and reader.text(ids).count(reader.end_of_thought) == 1
        kept = self._extract(ids[:thought], rollout.answer, reader) if correct else 0
        found = {"lc_r1_correct": float(correct), "lc_r1_thought": float(thought), "lc_r1_kept": float(kept)}
        edited = ids[:kept] + ids[thought:] if kept else ids
        return replace(rollout, response_ids=edited, metadata={**rollout.metadata, **found})

    def rewards(self, batch: Batch) -> Tensor:
        """Format, accuracy and length."""
        end = batch.reader.end_of_thought
        formatted = batch.each(lambda r: batch.reader.text(r.response_ids).count(end) == 1)
        base = formatted + batch.correct.double()
        correct = base == 2
        lengths = batch.lengths.double()
        longest_correct = torch.where(correct, lengths, 0.0).amax(-1, keepdim=True)
        shortness = torch.where(correct.any(-1, keepdim=True), 1 - lengths / (longest_correct + 1e-4), 0.0)
        return base + self.settings.length_weight * shortness

    def token_advantages(self, batch: Batch) -> Tensor:
        """The share of the thought that was cut, at `</think>`; -1 where a correct thought shows no valid part."""
        term = torch.zeros(*batch.lengths.shape, int(batch.lengths.max()), dtype=torch.float64)
        for g, group in enumerate(batch.groups):
            for n, rollout in enumerate(group):
                seen = rollout.metadata
                if seen["lc_r1_correct"]:
                    kept, thought = seen["lc_r1_kept"], seen["lc_r1_thought"]
                    share = 1 - kept / (thought + 1e-4) if kept else -1.0
                    term[g, n, int(kept or thought)] = self.settings.compress_weight * share
        return term
