"""SWAP in Molt: an experience maker whose advantages come from a frozen copy of the policy.

Molt's driver has the token ids, the reference answers (`labels`) and the rewards of a batch.
"""

from typing import Any

from molt.trainer import rl_trainer
from molt.trainer.rollout.experience_maker import RemoteExperienceMaker
from transformers import AutoModelForCausalLM, AutoTokenizer

from openrlhf_swap import Scorer, StepTrace, SwapConfig, swap_advantages

MODEL = "openrlhf_swap/quickstart/policy"
CONFIG = SwapConfig(step_tokens=8, close_template="</think>\n\n**Final Answer**\n\\boxed{")
SCORER = Scorer(
    AutoModelForCausalLM.from_pretrained(MODEL), AutoTokenizer.from_pretrained(MODEL), CONFIG
)


class SwapExperienceMaker(RemoteExperienceMaker):
    """For responses of one turn; a reward above 0 means correct."""

    def compute_advantages_and_returns(self, experiences: list[Any]) -> list[Any]:
        experiences = super().compute_advantages_and_returns(experiences)  # and what is logged
        groups: dict[Any, list[Any]] = {}
        for experience in experiences:
            experience.reload()
            for row, prompt in enumerate(experience.group_ids):
                groups.setdefault(prompt, []).append((experience, row))
        for group in groups.values():
            traces = [trace_of(experience, row) for experience, row in group]
            for (experience, row), values in zip(
                group, swap_advantages(traces, CONFIG), strict=True
            ):
                taken = experience.action_mask[row].bool()
                experience.advantages[row, taken] = values.to(experience.advantages)
        return experiences


def trace_of(experience: Any, row: int) -> StepTrace:
    """The trace of one row of an experience."""
    ids = experience.sequences[row]
    taken = experience.action_mask[row].bool()  # of each token but the first
    start = int(taken.int().argmax()) + 1
    prompt = ids[:start][experience.attention_mask[row, :start].bool()]
    correct = bool(experience.rewards[row] > 0)
    return SCORER.trace(prompt.tolist(), ids[1:][taken].tolist(), experience.labels[row], correct)


rl_trainer.RemoteExperienceMaker = SwapExperienceMaker  # with --algo.advantage.estimator dr_grpo
