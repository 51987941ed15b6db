"""AttnPO, after github.com/NieSYsc20/AttnPO (commit f650665)."""

from collections.abc import Iterator

from torch import Tensor

from openrlhf_swap.config import setting
from openrlhf_swap.objectives.arora import Arora
from openrlhf_swap.objectives.formats import right_answers
from openrlhf_swap.objectives.group_statistics import Span, fill_spans, group_mean
from openrlhf_swap.rollouts.rollout import Batch, Rollout


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
        advantages = rewards - group_mean(rewards)
        correct = self.correct(batch)
        accuracy = group_mean(correct)
        shares = batch.signals.gains / batch.signals.gains.sum(-1, keepdim=True)

        def scales_of(g: int, n: int, rollout: Rollout) -> Iterator[Span]:
            if correct[g, n] and len(rollout.step_ends) > 1:
                least = self._least_share(rollout, batch, accuracy[g].item())
                advantage = advantages[g, n].item()
                first = 0
                for end, share in zip(rollout.step_ends, shares[g, n].tolist(), strict=False):
                    scale = self._scale(share, least, advantage, accuracy[g].item())
                    yield first, end + 1, scale
                    first = end + 1

        return advantages.unsqueeze(-1) * fill_spans(batch, 1.0, scales_of)

    def _least_share(self, rollout: Rollout, batch: Batch, accuracy: float) -> float:
        """The authors' b of a correct response, whose thought is closed."""
        length = len(rollout.response_ids)
        thought = batch.reader.reasoning_length(rollout.response_ids)
        return accuracy**2 * (length - thought - 1) / (len(rollout.prompt_ids) + length)

    def _scale(self, share: float, least: float, advantage: float, accuracy: float) -> float:
        waits = self.step <= self.delay * (1 - accuracy)
        if advantage > 0 and share < least and not waits:
            return accuracy**2 * share / least + 1 - accuracy**2
        if advantage < 0 and share > least:
            return 0.0
        return 1.0
