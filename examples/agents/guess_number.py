"""Guess the Number, a game of TextArena.

A wrong answer gets a hint, "higher" or "lower", and another turn.

    pip install textarena  # tried with 0.7.4; with what it needs, 30 MiB
    openrlhf-swap train --train.agent_func_path examples/agents/guess_number.py [further flags]

The number is the reference answer, so this plays on any data whose answers are whole numbers from 0
to LARGEST. The boxed answer of a turn is a guess; a response that ends with the right one is
correct.
"""

from typing import Any

import textarena
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

from openrlhf_swap.rewards.statements import last_boxed

LARGEST = 1_000_000
GUESSES = 3
# Opens a turn as the chat template of the quickstart's policy does; other models open theirs in
# another way.
NEXT_TURN = "<|user|>{}<|assistant|><think>\n"


class GuessTheNumber(AgentInstanceBase):
    """The game of one response."""

    def __init__(self) -> None:
        # Its own limit of turns fails at a turn without a guess (0.7.4): `step` counts instead.
        self._game = textarena.make(
            "GuessTheNumber-v0-raw", min_number=0, max_number=LARGEST, max_turns=10**9
        )

    async def reset(self, states: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Begin a game whose number is the label; the prompt stays as it is."""
        self._game.reset(num_players=1)
        self._game.game_number = self._game.state.game_state["game_number"] = int(states["label"])
        return states

    async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
        """Pass the boxed answer on as a guess; two turns without a valid one end the game."""
        self._game.step(f"[{last_boxed(state_dict['action_text'])}]")
        _, messages = self._game.get_observation()
        state = self._game.state
        wrong = len(state.game_state["guess_history"])
        done = state.done or wrong == GUESSES
        return {
            # The game rewards near misses, too; here a reward above 0 means correct.
            "rewards": torch.tensor(float(state.done and state.rewards[0] == 1)),
            "environment_feedback": "" if done else NEXT_TURN.format(messages[-1][1]),
            "done": done,
            "extra_logs": {"wrong_guesses": wrong},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    """What OpenRLHF looks for in the file."""

    def __init__(self) -> None:
        super().__init__(GuessTheNumber)
