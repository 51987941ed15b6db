"""CRISP, also called OPSDC (arXiv 2603.05433).

After github.com/HJSang/OPSD_Reasoning_Compression (commit 3d4cf1d). The teacher is the reference
model under a prompt that asks for brevity, and OpenRLHF's KL loss is the whole loss. It needs
neither answers nor verdicts.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

from openrlhf_swap.config import SwapConfig
from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.objectives.base import (
    Objective,
    ResponseReader,
    Rollout,
    SamplingRequest,
    setting,
)

# The paper's v1, of two instructions.
INSTRUCTION = (
    "Solve the following math problem concisely and correctly. Be direct: avoid unnecessary "
    "elaboration, redundant steps, or restating the problem. Focus only on the key reasoning steps "
    "needed to reach the answer."
)


class CRISP(Objective):
    """loss = mean over tokens of KL(p(. | x, y_<t) || p_ref(. | instruction, x, y_<t)).

    x is the problem, y a response of the policy to it, p_ref the reference model: the policy as it
    was when the run began. The gradient is that of the KL at the sampled tokens, where the authors
    take the whole vocabulary. They make the policy the new teacher every 50 steps; a further run
    from this run's policy does so here.
    """

    no_numbers = (
        "its loss is a KL, and its advantages are 0; a test compares the gradient with that of the "
        "authors' loss"
    )
    flags: ClassVar[dict[str, Any]] = {
        "algo.kl.use_loss": True,
        "algo.kl.init_coef": 1.0,
        "algo.kl.estimator": "k1",
        "algo.kl.unbiased_gradient": True,
    }
    outcome_weight = 0.0
    needs_verdicts = False
    instruction: str = setting(
        INSTRUCTION, "what asks the teacher to be brief, before the problem", min_length=1
    )

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self._teacher_prompts: dict[str, str] = {}  # by the prompt without the instruction

    def check(self, args: SimpleNamespace) -> None:
        kl = args.algo.kl
        if not (kl.use_loss and kl.unbiased_gradient and kl.init_coef > 0):
            given = (
                f"--algo.kl.use_loss is {kl.use_loss}, --algo.kl.unbiased_gradient "
                f"{kl.unbiased_gradient} and --algo.kl.init_coef {kl.init_coef}"
            )
            raise ConfigError(f"{given}; crisp learns from the KL loss alone: leave them out")
        if args.train.agent_func_path:
            raise ConfigError(
                "--train.agent_func_path does not work with crisp, whose teacher reads another "
                "prompt than the one that an agent continues: leave it out"
            )

    def rewrite_problem(self, problem: str, rng: random.Random) -> str:
        return self._prefix + problem

    @property
    def _prefix(self) -> str:
        return f"{self.instruction}\n\n"

    def check_prompts(self, prompts: Iterable[str]) -> None:
        if not all(self._prefix in prompt for prompt in prompts):
            raise DataError(
                f"--swap.crisp.instruction is {self.instruction!r}, which the chat template "
                "changes: give it without white space at its ends"
            )

    def sampling(self, prompt: str, count: int, max_new_tokens: int) -> list[SamplingRequest]:
        """The policy gets the prompt without the instruction."""
        plain = prompt.replace(self._prefix, "", 1)
        self._teacher_prompts[plain] = prompt
        return [SamplingRequest(plain, count, max_new_tokens)]

    def edit(self, rollout: Rollout, reader: ResponseReader) -> Rollout:
        """The response as it is, beside the prompt with the instruction."""
        prompt_ids = reader.ids(self._teacher_prompts[rollout.prompt])
        return replace(rollout, teacher_prompt_ids=prompt_ids)
