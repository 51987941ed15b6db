"""Two penalties for the length of a correct answer."""

import torch
from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Objective, setting


class PerToken(Objective):
    """R = c (1 - rate L/100), normalised in the group."""

    rate: float = setting(0.01, "taken from a correct answer for each 100 tokens", ge=0)

    def rewards(self, batch: Batch) -> Tensor:
        return batch.correct * (1 - self.rate * batch.lengths.double() / 100)


class AfterKnown(Objective):
    """GRPO, less a penalty for each token after the step from which on the answer is likely."""

    penalty: float = setting(0.1, "taken from a token after the answer is likely", ge=0)
    scores_steps = True  # the policy scores the answer after every step of a correct response

    def token_advantages(self, batch: Batch) -> Tensor:
        advantages = torch.zeros(*batch.lengths.shape, int(batch.lengths.max()))
        for group, rollouts in enumerate(batch.groups):
            for place, rollout in enumerate(rollouts):
                # l_1..l_K, in nats per token; none of a wrong response.
                scored = zip(rollout.step_ends, rollout.answer_logprobs[1:], strict=False)
                known = [end for end, score in scored if score > -0.1]
                if known:
                    advantages[group, place, known[0] + 1 :] = -self.penalty
        return advantages
