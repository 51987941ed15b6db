"""ThinkPrune: a hard token limit that falls in stages; the reward is plain correctness.

After github.com/UCSB-NLP-Chang/ThinkPrune (2025-04-16). There each stage is a run of its own from the last checkpoint,
and the limit is announced in a system prompt; here one run goes through the stages, and the sentence ends the user's
turn.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

from openrlhf_swap.config import FlagSettings, SwapConfig, setting
from openrlhf_swap.objectives.base import Objective, SamplingRequest

ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."


class ThinkPrune(Objective):
    """Limits of 4,000, 3,000 and 2,000 tokens by default, 180 steps each."""

    class Settings(FlagSettings):
        """Flags `--swap.thinkprune.*`."""

        limits: str = setting("4000,3000,2000", "token limit of each stage")
        stage_steps: int = setting(180, "training steps of a stage; the last one goes on to the end", ge=1)
        announce: int = setting(1, "1: the prompt names the limit, as in the released code; 0: it does not")

    settings: Settings

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._limits = self.numbers("limits", "token limits such as 4000,3000,2000")
        self._stage = 0

    @property
    def limit(self) -> int:
        """Tokens that a response may have now."""
        return self._limits[self._stage]

    def check(self, args: SimpleNamespace) -> None:
        """A limit must fit the response length."""
        self.check_limits(self._limits, args)

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        """Announce the first limit; `sampling` brings it up to date."""
        return problem + ANNOUNCEMENT.format(limit=self._limits[0]) if self.settings.announce else problem

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """The stage's limit, in the prompt and for the engine."""
        self._stage = min(self.step // self.settings.stage_steps, len(self._limits) - 1)
        before, after = (ANNOUNCEMENT.format(limit=limit) for limit in (self._limits[0], self.limit))
        head, found, tail = prompt.rpartition(before)
        return [SamplingRequest(head + after + tail if found else prompt, count, self.limit)]

    def metrics(self) -> dict[str, float]:
        """The limit."""
        return {"swap/thinkprune_limit": float(self.limit)}

    def state_dict(self) -> dict[str, Any]:
        """The stage, which follows from the step; kept so that a checkpoint says where it stood."""
        return {"stage": self._stage}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As saved."""
        self._stage = state["stage"]
