r"""The quickstart's policy with a calculator.

The policy writes a column as far as "=", and the environment writes the sum.

    openrlhf-swap train --train.agent_func_path examples/agents/calculator.py \
        --swap.steps turns [further flags]

A call is useless if its column was asked before, and then costs its turn `COST`. OpenRLHF makes one
`Calculator` for each response.
"""

import re
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_swap.rewards.statements import last_boxed
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT

COST = 0.0

CALL = re.compile(r"(\d)\+(\d)\+(\d)=$")


class Calculator(AgentInstanceBase):
    """The environment of one response."""

    def __init__(self) -> None:
        self._calls: list[str] = []

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Answer a call, or grade what is not one."""
        action = state_dict["action_text"]
        call = CALL.search(action)
        useless = call is not None and call.group() in self._calls
        if call:
            self._calls.append(call.group())
        correct = call is None and last_boxed(action) == state_dict["label"]
        return {
            "rewards": torch.tensor(correct - COST * useless),
            "environment_feedback": self._sum(call) if call else "",
            "done": call is None,
            # In each turn the same names: the last turn's are the response's, also where the
            # context ends it.
            "extra_logs": {
                "calls": len(self._calls),
                "useless_calls": len(self._calls) - len(set(self._calls)),
                GRADED_CORRECT: float(correct),  # whatever the calls before have cost
            },
        }

    @staticmethod
    def _sum(call: re.Match[str]) -> str:
        return f"{sum(map(int, call.groups())):02d}\n"


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file: vLLM stops at a call."""

    def __init__(self) -> None:
        super().__init__(Calculator)

    async def execute(
        self, prompt: str, label: str, sampling_params: Any, *args: Any, **more: Any
    ) -> dict[str, Any]:
        """Generate turns until one is no call."""
        sampling_params.stop = ["="]
        sampling_params.include_stop_str_in_output = True
        response: dict[str, Any] = await super().execute(
            prompt, label, sampling_params, *args, **more
        )
        return response
