"""A-DLP, after its code (commit afbc411)."""

from torch import Tensor

from openrlhf_swap.objectives.base import Batch, Objective, setting


class ADLP(Objective):
    """R = c - lambda L, wrong answers too; then lambda <- max(0, lambda + eta (accuracy - target)).

    Lambda is .001 a token in the first step. An answer in a thought that never closes is wrong.
    """

    penalises_long_wrong = True
    remembers_batches = True
    state = ("penalty",)
    penalty = 0.001
    rate: float = setting(0.001, "eta: how fast lambda follows the accuracy")
    target: float = setting(0.62, "accuracy to keep: the base policy's", ge=0, le=1)

    def correct(self, batch: Batch) -> Tensor:
        return batch.correct & batch.closed

    def rewards(self, batch: Batch) -> Tensor:
        correct = self.correct(batch).double()
        rewards = correct - self.penalty * batch.lengths.double()
        surplus = correct.mean().item() - self.target
        self.penalty = max(0.0, self.penalty + self.rate * surplus)
        return rewards

    def metrics(self) -> dict[str, float]:
        return {"swap/a_dlp_penalty": self.penalty}
