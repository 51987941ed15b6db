"""ThinkPrune, after github.com/UCSB-NLP-Chang/ThinkPrune (2025-04-16)."""

import random

from openrlhf_swap.objectives.base import Numbers, SamplingRequest, numbers, setting
from openrlhf_swap.objectives.peers.staged import Staged

ANNOUNCEMENT = " The output of the assistant should be within {limit} tokens."


class ThinkPrune(Staged):
    """R = c under limits that fall in stages."""

    limits: Numbers = numbers("4000,3000,2000", "token limit of each stage")
    stage_steps: int = setting(
        180, "training steps of a stage; the last one goes on to the end", ge=1
    )
    announce: bool = setting(True, "the prompt names the limit, as in the released code")

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        if not self.announce:
            return problem
        return problem + ANNOUNCEMENT.format(limit=self.limits[0])

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        self.stage = min(self.step // self.stage_steps, len(self.limits) - 1)
        limit = self.limits[self.stage]
        first = ANNOUNCEMENT.format(limit=self.limits[0])
        now = ANNOUNCEMENT.format(limit=limit)
        head, found, tail = prompt.rpartition(first)
        asked = head + now + tail if found else prompt
        return [SamplingRequest(asked, count, limit)]

    def metrics(self) -> dict[str, float]:
        return {"swap/thinkprune_limit": float(self.limits[self.stage])}
