"""Objectives that measure the policy on training prompts from time to time."""

from openrlhf_swap.objectives.base import Batch, Objective, setting


class Monitored(Objective):
    """Measures the policy every so many steps; a subclass decides what it learns from that."""

    monitored_at = -1
    """The step of the last measurement, which belongs to the state: none is made twice."""
    monitor_prompts: int = setting(500, "training prompts of the monitoring set", ge=1)
    monitor_samples: int = setting(8, "responses to each", ge=1)
    monitor_every: int = setting(
        20, "training steps between two measurements; the first is before step 1", ge=1
    )

    def monitor(self) -> tuple[int, int] | None:
        is_due = self.step % self.monitor_every == 0
        if not is_due or self.monitored_at == self.step:
            return None
        return self.monitor_prompts, self.monitor_samples

    def observe_monitor(self, batch: Batch) -> None:
        self.monitored_at = self.step
