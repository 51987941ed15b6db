"""A table that cannot be guessed."""

import re
from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

TABLE = {"a": "17", "b": "42"}


class Lookup(AgentInstanceBase):  # one for each response
    def __init__(self) -> None:
        self.calls = 0

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        call = re.search(r"look up (\w+)", state_dict["action_text"])
        self.calls += bool(call)
        correct = not call and state_dict["label"] in state_dict["action_text"]
        return {
            # A tensor. The response's reward is the sum over its turns, and 0 is wrong.
            "rewards": torch.tensor(float(correct)),
            "environment_feedback": self.answer(call[1]) if call else "",
            "done": not call,
            "extra_logs": {"calls": self.calls},  # become metrics; the same names in every turn
        }

    def answer(self, name: str) -> str:
        return f"<|user|>{TABLE.get(name, 'unknown')}<|assistant|><think>\n"


class AgentExecutor(MultiTurnAgentExecutor):  # the name that OpenRLHF looks for
    def __init__(self) -> None:
        super().__init__(Lookup)
