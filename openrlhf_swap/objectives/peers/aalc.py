"""AALC, after its code (commit f12452d)."""

from torch import Tensor

from openrlhf_swap.algorithm.advantages import moments
from openrlhf_swap.objectives.base import Batch, setting
from openrlhf_swap.objectives.group_statistics import EPS
from openrlhf_swap.objectives.peers.monitored import Monitored


class AALC(Monitored):
    """R = c (1 - .1 a) + 1e-6 (1 - min(a^128, min(1, L/long))), a = min(1, accuracy/target).

    In the group. The second term decides in groups that are all correct or all wrong alone.
    """

    normaliser = "none"
    state = ("accuracy", "monitored_at")
    accuracy = 0.0  # of the last measurement
    target: float = setting(1.0, "accuracy from which the length counts in full", gt=0, le=1)
    long: int = setting(1024, "tokens from which a response counts as long", ge=1)
    monitor_samples: int = setting(1, "responses to each", ge=1)
    monitor_every: int = setting(
        10, "training steps between two measurements; the first is before step 1", ge=1
    )

    def observe_monitor(self, batch: Batch) -> None:
        super().observe_monitor(batch)
        self.accuracy = batch.correct.double().mean().item()

    def rewards(self, batch: Batch) -> Tensor:
        reached = min(1.0, self.accuracy / self.target)
        share = batch.lengths.double() / self.long
        shortness = 1 - share.clamp(max=reached**128)
        rewards = (1 - 0.1 * reached) * batch.correct.double() + 1e-6 * shortness
        # Deviations are as small as the constant that is added to them, and count all the same.
        pooled = moments(rewards)
        return (rewards - pooled.mean) / (pooled.deviation + EPS)

    def metrics(self) -> dict[str, float]:
        return {"swap/aalc_accuracy": self.accuracy}
