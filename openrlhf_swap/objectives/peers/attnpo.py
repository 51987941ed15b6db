"""AttnPO, after github.com/NieSYsc20/AttnPO (commit f650665)."""

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Rollout, setting
from openrlhf_swap.objectives.group_statistics import group_mean, of_each_token
from openrlhf_swap.objectives.peers.formats import right_answers
from openrlhf_swap.objectives.peers.length_rewards import Arora


class AttnPO(Arora):
    """A = Arora's, times a scale of each step of a correct response, by its share s of the gains.

    With p the group's accuracy and b = p^2 (answer tokens / all tokens): where A > 0 and s < b the
    scale is p^2 s/b + 1 - p^2, once 1000 (1 - p) steps are over; where A < 0 and s > b it is 0;
    elsewhere 1. Responses of less than two steps are not scaled.

    s and the steps are SWAP's: the authors take the attention of three heads, which they do not
    publish, and cut a thought at keywords. One notion of correct serves reward and scale: a
    thought opened once and closed once, whether or not the limit cut the response off.
    """

    no_numbers = "the scale is after its code, whose score of a step is not published"
    outcome_weight = 0.0
    scores_steps = True
    alpha: float = setting(0.2, "most that a correct answer can lose", ge=0, lt=1)
    delay: int = setting(
        1000, "training steps after which problems that nobody solves would be scaled, too", ge=0
    )

    def correct(self, batch: Batch) -> Tensor:
        return right_answers(batch, self.config)

    def token_advantages(self, batch: Batch) -> Tensor:
        rewards = self.rewards(batch)
        advantages = (rewards - group_mean(rewards)).unsqueeze(-1)
        scales = self._scales(batch, advantages)
        return advantages * of_each_token(batch, scales, rest=1.0)

    def _scales(self, batch: Batch, advantages: Tensor) -> Tensor:
        """(G, N, K) from (G, N, 1) advantages."""

        def answer_share(rollout: Rollout) -> float:
            thought = batch.reader.reasoning_length(rollout.response_ids)
            tokens = len(rollout.response_ids)
            return (tokens - thought - 1) / (len(rollout.prompt_ids) + tokens)

        correct = self.correct(batch)
        accuracy = group_mean(correct).unsqueeze(-1)
        gains = batch.credit.gains
        shares = gains / gains.sum(-1, keepdim=True)
        least = accuracy.square() * batch.each(answer_share).unsqueeze(-1)
        is_over = self.step > self.delay * (1 - accuracy)
        loses = (advantages > 0) & (shares < least) & is_over
        is_spared = (advantages < 0) & (shares > least)
        lost = accuracy.square() * (1 - shares / least)
        scales = torch.where(loses, 1 - lost, 1.0)
        scales[is_spared] = 0.0
        is_scaled = correct & (batch.steps.step_mask.sum(-1) > 1)
        return torch.where(is_scaled.unsqueeze(-1), scales, 1.0)
