"""SABER, after github.com/bilibili/saber_rl (commit fc93067)."""

import random

from torch import Tensor

from openrlhf_swap.objectives.base import (
    Batch,
    Numbers,
    Objective,
    ResponseReader,
    Rollout,
    SamplingRequest,
    numbers,
)
from openrlhf_swap.objectives.peers.formats import without_opening
from openrlhf_swap.objectives.peers.l1 import MAXIMUM, asked_budget
from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rollouts.families import open_thought

NO_THOUGHT = " Answer without thinking."
NO_LIMIT = 32768


class SABER(Objective):
    """R = c - .2 [bad format] - .4 [thought > n]; in the group.

    c asks for a box. A response in a wrong format has no c and no penalty for length; one that
    ends with its thought has no penalty for length either. The format is one thought, opened once
    by the prompt or the response, and closed once; where n is 0 the prompt closes it.
    """

    penalises_long_wrong = True
    boxes_answers = True
    needs_marks = True
    rewrites_evaluation = True
    limits_thoughts = True
    budgets: Numbers = numbers(
        "0,128,4096,32768", "thinking tokens, one for each row; 0: no thought; 32768: no limit"
    )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        budget = rng.choice(self.budgets)
        sentences = {0: NO_THOUGHT, NO_LIMIT: ""}
        return problem + sentences.get(budget, MAXIMUM.format(n=budget))

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        return [SamplingRequest(self.eval_prompt(prompt), count, max_new_tokens)]

    def eval_prompt(self, prompt: str) -> str:
        if NO_THOUGHT not in prompt:
            return prompt
        opened = open_thought(prompt, self.config.start_of_thought)
        return f"{opened}\n{self.config.end_of_thought}\n\n"

    def rewards(self, batch: Batch) -> Tensor:
        return batch.each(lambda rollout: self._reward(rollout, batch.reader))

    def _reward(self, rollout: Rollout, reader: ResponseReader) -> float:
        text = reader.text(reader.without_end(rollout.response_ids))
        thinks = NO_THOUGHT not in rollout.prompt
        if thinks:
            text = without_opening(text, rollout.prompt, self.config.start_of_thought)
        opens_again = self.config.start_of_thought.strip() in text
        if opens_again or text.count(reader.end_of_thought) != int(thinks):
            return -0.2
        answer = text.rpartition(reader.end_of_thought)[2]
        correct = rollout.correct and last_boxed(text) is not None
        too_long = thinks and answer.strip() != "" and self._exceeds(rollout, reader)
        return correct - 0.4 * too_long

    def _exceeds(self, rollout: Rollout, reader: ResponseReader) -> bool:
        """Whether a thought has more tokens than the prompt's budget; a last newline is free."""
        budget = asked_budget(rollout)
        thought = reader.reasoning_length(rollout.response_ids)
        last = rollout.response_ids[max(0, thought - 1) : thought]
        return budget is not None and thought - (reader.text(last) == "\n") > budget
