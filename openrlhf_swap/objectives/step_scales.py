"""SAS and AttnPO: the advantage of a response, multiplied by a number for each of its reasoning steps."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from openrlhf_swap.algorithm.advantages import outcome_advantages
from openrlhf_swap.config import SwapConfig, setting
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.objectives.group_rewards import EPS, Arora
from openrlhf_swap.rollouts.reader import ResponseReader
from openrlhf_swap.rollouts.rollout import Batch, Rollout

Scale = tuple[int, int, float]  # of the tokens from the first to before the second


def scale_steps(batch: Batch, advantages: Tensor, scales_of: Callable[[int, int, Rollout], list[Scale]]) -> Tensor:
    """(G, N, A) the (G, N) advantages, times the scales of the steps of response n of group g; 1 outside of them."""
    scales = torch.ones(*batch.lengths.shape, int(batch.lengths.max()), dtype=torch.float64)
    for g, group in enumerate(batch.groups):
        for n, rollout in enumerate(group):
            for start, end, scale in scales_of(g, n, rollout):
                scales[g, n, start:end] = scale
    return advantages.unsqueeze(-1) * scales


class SAS(Objective):
    """A = GRPO(c), but 0 on some steps: the least confident of correct responses, the most confident of wrong ones.

    A step ends with a token that holds a blank line; its confidence is the mean log-probability of its tokens. Of K
    steps a correct response loses ceil(share K), a wrong one keeps ceil((1 - share) K). So nothing is learned from
    guesses that went well and sound steps that ended badly. After github.com/HanNight/SAS (commit 78b201c); there
    `len(splits)+1 * share` lacks its parentheses: `released` does as that ran, 0 on all steps of correct responses and
    on none of wrong ones.
    """

    outcome_weight = 0.0  # `token_advantages` holds all of it
    needs_all_groups = False
    share: float = setting(0.3, "of a response's steps that teach nothing", ge=0, le=1)
    variant: Literal["paper", "released"] = setting("paper", "paper: as above; released: as the released code ran")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._blank: dict[int, bool] = {}  # token -> whether it holds a blank line

    def token_advantages(self, batch: Batch) -> Tensor:
        advantages = outcome_advantages(batch.correct.double(), EPS)
        return scale_steps(batch, advantages, lambda g, n, rollout: self._scales(rollout, batch.reader))

    def _scales(self, rollout: Rollout, reader: ResponseReader) -> list[Scale]:
        steps = self.steps(rollout, reader)
        if self.variant == "released":
            return [(start, end, 0.0) for start, end in steps if rollout.correct]
        assert rollout.logprobs is not None
        confidence = [rollout.logprobs[start:end].mean().item() for start, end in steps]
        order = sorted(range(len(steps)), key=confidence.__getitem__)
        lost = math.ceil(self.share * len(steps))
        kept = math.ceil((1 - self.share) * len(steps))
        return [(*steps[k], 0.0) for k in (order[:lost] if rollout.correct else order[kept:])]

    def steps(self, rollout: Rollout, reader: ResponseReader) -> list[tuple[int, int]]:
        """The first token of each step of a thought, and the one after its last, which holds a blank line."""
        length = reader.thought_length(rollout.response_ids)
        thought = rollout.response_ids[: -1 if length is None else length]  # an open thought ends before the end token
        self._blank |= {token: "\n\n" in reader.text([token]) for token in set(thought) - self._blank.keys()}
        ends = [place for place, token in enumerate(thought, 1) if self._blank[token]]
        return list(pairwise(sorted({0, *ends, len(thought)})))


class AttnPO(Arora):
    """A = Arora's; a step of a correct response that gains less than b earns less, one that gains more pays nothing.

    With s the step's share of the response's gains and b = p^2 (answer tokens / all tokens), p the group's accuracy:
    where A > 0 and s < b it is multiplied by p^2 s/b + 1 - p^2, once 1000 (1 - p) steps are over, so that easy
    problems come first; where A < 0 and s > b, by 0. After github.com/NieSYsc20/AttnPO (commit f650665), whose s is
    the answer's attention to the step and is not published: SWAP's gain takes its place, so results are not
    comparable with the paper's.
    """

    outcome_weight = 0.0
    scores_steps = True
    alpha: float = setting(0.2, "most that a correct answer can lose", ge=0, lt=1)
    delay: int = setting(1000, "training steps after which problems that nobody solves would be scaled, too", ge=0)

    def token_advantages(self, batch: Batch) -> Tensor:
        rewards = self.rewards(batch)
        advantages = rewards - rewards.mean(-1, keepdim=True)
        accuracy = batch.correct.double().mean(-1)
        shares = batch.signals.gains / batch.signals.gains.sum(-1, keepdim=True)

        def scales_of(g: int, n: int, rollout: Rollout) -> list[Scale]:
            thought, length = batch.reader.thought_length(rollout.response_ids), len(rollout.response_ids)
            ends = [end + 1 for end in rollout.step_ends]
            if not rollout.correct or thought is None or len(ends) < 2:
                return []
            p, advantage = accuracy[g].item(), advantages[g, n].item()
            least = p**2 * (length - thought - 1) / (len(rollout.prompt_ids) + length)
            scales = []
            for start, end, share in zip([0, *ends[:-1]], ends, shares[g, n, : len(ends)].tolist(), strict=True):
                if advantage > 0 and share < least and self.delay * (1 - p) < self.step:
                    scales.append((start, end, p**2 * share / least + 1 - p**2))
                elif advantage < 0 and share > least:
                    scales.append((start, end, 0.0))
            return scales

        return scale_steps(batch, advantages, scales_of)
