"""Objectives that go through stages in one run."""

from types import SimpleNamespace
from typing import ClassVar

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Numbers, Objective, setting


class Staged(Objective):
    """Has a stage, from 0 on, that `sampling` sets: rewards belong to the stage of the sampling."""

    limits_thoughts = True
    state: ClassVar[tuple[str, ...]] = ("stage",)
    limits: Numbers = setting(
        "",
        "token limit of each stage, of which the last one holds on; empty: the run's; such as "
        "8192,16384,24576",
        "use token limits such as 8192,16384,24576",
        validate_default=True,
    )
    stage = 0

    def check(self, args: SimpleNamespace) -> None:
        longest = max(self.limits, default=0)
        limit = args.rollout.max_new_tokens
        if longest > limit:
            raise ConfigError(
                f"--swap.{self.name}.limits has {longest}, but --rollout.max_new_tokens is "
                f"{limit}; raise that, or lower the limit"
            )

    @property
    def limit(self) -> int | None:
        """Tokens that a response may have in this stage; None: the run's limit holds."""
        if not self.limits:
            return None
        return self.limits[min(self.stage, len(self.limits) - 1)]
