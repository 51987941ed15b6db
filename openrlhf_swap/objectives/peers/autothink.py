"""AutoThink, after its code (commit be0bcb0)."""

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import standardise
from openrlhf_swap.objectives.base import Batch, Rollout, SamplingRequest, setting
from openrlhf_swap.objectives.peers.formats import is_degenerate
from openrlhf_swap.objectives.peers.staged import Staged
from openrlhf_swap.rollouts.families import open_thought
from openrlhf_swap.rollouts.reader import boxes_answer

ELLIPSIS = "...\n"  # at the beginning of each thought; it is not trained on


class AutoThink(Staged):
    """R = 1 or 0 with a thought, 2 or -1 without; in the group. Its three stages change R.

    A response without a thought begins with `</think>`. An answer counts in a box after a closed
    thought. A wrong response without a thought has 0 without a box, and -2 if it repeats itself.

    First stage: of a mode with a share q over 1/2, R <- (1 - d) R + d R', d = min(1, 2 q - 1); R'
    is 0 or -1 with a thought, 1 or -2 without. Second stage: R. Third: R - 1 + exp(-.05 z)
    correct, R + 1 - exp(-.05 z) wrong; z is the length's z-score among the correct, or the wrong,
    responses of the group.
    """

    boxes_answers = True
    needs_marks = True
    second_stage: int = setting(
        200, "training step with which the second stage begins (ours)", ge=0
    )
    third_stage: int = setting(400, "training step with which the third one begins (ours)", ge=0)

    def eval_prompt(self, prompt: str) -> str:
        return open_thought(prompt, self.config.start_of_thought) + ELLIPSIS

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = int(self.step >= self.second_stage) + int(self.step >= self.third_stage)
        return [SamplingRequest(self.eval_prompt(prompt), count, self.limit or max_new_tokens)]

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & self._boxed(batch)

    def _boxed(self, batch: Batch) -> Tensor:
        return batch.each(lambda rollout: boxes_answer(rollout.response_ids, batch.reader)).bool()

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch)
        skips = self._skips(batch)
        boxed = self._boxed(batch)
        repeats = batch.each_text(is_degenerate).bool()
        rewards = correct.double()
        rewards[skips & ~correct & boxed] = -1.0
        rewards[skips & ~correct & boxed & repeats] = -2.0
        rewards[skips & correct] = 2.0
        if self.stage == 0:
            return _balanced(rewards, correct, skips)
        if self.stage == 2:
            return rewards + _shortness(batch.lengths, correct)
        return rewards

    def _skips(self, batch: Batch) -> Tensor:
        """(G, N) bool, the responses without a thought."""
        end = batch.reader.end_of_thought

        def begins_with_end(rollout: Rollout) -> bool:
            beginning = rollout.response_ids[: len(end)]  # it has no more tokens than letters
            return batch.reader.text(beginning).startswith(end)

        return batch.each(begins_with_end).bool()

    def metrics(self) -> dict[str, float]:
        return {"swap/autothink_stage": 1.0 + self.stage}


def _balanced(rewards: Tensor, correct: Tensor, skips: Tensor) -> Tensor:
    """The first stage's rewards, which fall for a mode that prevails in the batch."""
    share_of_skips = skips.double().mean()
    share = torch.where(skips, share_of_skips, 1 - share_of_skips)
    excess = (2 * share - 1).clamp(0, 1)
    of_skips = torch.where(correct, 1.0, -2.0)
    of_thoughts = torch.where(correct, 0.0, -1.0)
    return (1 - excess) * rewards + excess * torch.where(skips, of_skips, of_thoughts)


def _shortness(lengths: Tensor, correct: Tensor) -> Tensor:
    """(G, N) what the third stage adds: correct answers earn by shortness, wrong ones by length."""
    among_correct = torch.exp(-0.05 * standardise(lengths, correct)) - 1
    among_wrong = 1 - torch.exp(-0.05 * standardise(lengths, ~correct))
    return torch.where(correct, among_correct, among_wrong)
