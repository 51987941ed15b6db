"""ThinkPrune: a hard token limit that falls in stages; the reward is plain correctness.

After github.com/UCSB-NLP-Chang/ThinkPrune (2025-04-16). There each stage is a run of its own from the last checkpoint,
and the limit is announced in a system prompt; here one run goes through the stages, and the sentence ends the user's
turn.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.objectives.base import Objective, Sampling, setting

ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."


class ThinkPrune(Objective):
    """Limits of 4,000, 3,000 and 2,000 tokens by default, 180 steps each."""

    @dataclass(frozen=True)
    class Settings:
        """Flags `--swap.thinkprune.*`."""

        limits: str = setting("4000,3000,2000", "token limit of each stage")
        stage_steps: int = setting(180, "training steps of a stage; the last one goes on to the end")
        announce: int = setting(1, "1: the prompt names the limit, as in the released code; 0: it does not")

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        try:
            self._limits = [int(limit) for limit in self.settings.limits.split(",")]
        except ValueError:
            self._limits = []
        if not self._limits or min(self._limits) < 1:
            raise ConfigError(
                f"--swap.thinkprune.limits is {self.settings.limits!r}; use token limits such as 4000,3000,2000"
            )
        if self.settings.stage_steps < 1:
            raise ConfigError(f"--swap.thinkprune.stage_steps is {self.settings.stage_steps}; use at least 1")
        self._stage = 0

    @property
    def limit(self) -> int:
        """Tokens that a response may have now."""
        return self._limits[self._stage]

    def check(self, args: SimpleNamespace) -> None:
        """A limit must fit the response length."""
        longest, room = max(self._limits), args.rollout.max_new_tokens
        if longest > room:
            raise ConfigError(
                f"--swap.thinkprune.limits has {longest}, but --rollout.max_new_tokens is {room}; raise "
                "that, or lower the limit"
            )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """Announce the first limit; `sampling` brings it up to date."""
        return problem + ANNOUNCEMENT.format(limit=self._limits[0]) if self.settings.announce else problem

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[Sampling]:
        """The stage's limit, in the prompt and for the engine."""
        self._stage = min(self.step // self.settings.stage_steps, len(self._limits) - 1)
        before, after = (ANNOUNCEMENT.format(limit=limit) for limit in (self._limits[0], self.limit))
        head, found, tail = prompt.rpartition(before)
        return [Sampling(head + after + tail if found else prompt, count, self.limit)]

    def metrics(self) -> dict[str, float]:
        """The limit."""
        return {"swap/thinkprune_limit": float(self.limit)}

    def state_dict(self) -> dict[str, Any]:
        """The stage, which follows from the step; kept so that a checkpoint says where it stood."""
        return {"stage": self._stage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._stage = state["stage"]
