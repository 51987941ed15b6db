"""The same problem twice: each turn thinks anew, and the second answer counts.

    openrlhf-swap train --train.agent_func_path examples/agents/twice.py \
        --agent.keep_thoughts last --ds.packing_samples [further flags]

With `--agent.keep_thoughts last` the second turn does not read the first one's thought.
"""

from typing import Any

import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_swap.rewards.statements import last_boxed


class Twice(AgentInstanceBase):
    """The two turns of one response."""

    def __init__(self) -> None:
        self._prompt = ""
        self._turns = 0

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Keep the prompt, which opens the second turn, too."""
        self._prompt = states["observation"]
        return states

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Ask again after the first turn; grade the second."""
        self._turns += 1
        done = self._turns == 2
        correct = last_boxed(state_dict["action_text"]) == state_dict["label"]
        return {
            "rewards": torch.tensor(float(done and correct)),
            "environment_feedback": "" if done else self._prompt,
            "done": done,
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file."""

    def __init__(self) -> None:
        super().__init__(Twice)
