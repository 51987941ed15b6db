"""What objectives share that measure the policy on training prompts every so many steps."""

from __future__ import annotations

from openrlhf_swap.config import FlagSettings, setting
from openrlhf_swap.objectives.base import Monitor, Objective
from openrlhf_swap.rollouts.batch import Batch


class MonitorSettings(FlagSettings):
    """The set, and when it is sampled."""

    monitor_prompts: int = setting(500, "training prompts of the monitoring set", ge=1)
    monitor_samples: int = setting(8, "responses to each", ge=1)
    monitor_every: int = setting(20, "training steps between two measurements; the first is before step 1", ge=1)


class Monitored(Objective):
    """Asks for a monitoring set once every `monitor_every` steps; the objective decides what to learn from it."""

    settings: MonitorSettings
    monitored_at = -1  # the step

    def monitor(self) -> Monitor | None:
        """Every `monitor_every` steps."""
        if self.step % self.settings.monitor_every or self.monitored_at == self.step:
            return None
        return Monitor(self.settings.monitor_prompts, self.settings.monitor_samples)

    def observe_monitor(self, batch: Batch) -> None:
        """Remember when; an objective adds what it learns."""
        self.monitored_at = self.step
