"""Facts that OpenRLHF's executors do not tell: why a reward is missing, and what a turn earned."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from openrlhf_swap.errors import DataError, reader_errors
from openrlhf_swap.integration.engine.responses import FAILED, TURN_REWARDS
from openrlhf_swap.packages.versions import replace


def tell_more(executor: Any, settings: Mapping[str, str]) -> None:
    """Let an executor tell of failures or turns, and give its reward function our settings.

    The function gets those that it has parameters for, such as `end_of_thought`.
    """
    environment = getattr(executor, "agent_instance_cls", None)
    if environment is not None:
        replace(executor, "agent_instance_cls", with_turn_rewards(environment), "openrlhf")
    function = getattr(executor, "reward_func", None)
    if function is not None:  # otherwise an agent's environment gives the rewards
        parameters = inspect.signature(function).parameters
        taken = {name: value for name, value in settings.items() if name in parameters}
        wrapped = explain_failures(functools.partial(function, **taken))
        replace(executor, "reward_func", wrapped, "openrlhf")


def explain_failures(function: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """Wrap a reward function: OpenRLHF drops its errors, so they travel in `extra_logs`.

    `read_response` raises them.
    """

    def graded(*arguments: Any) -> dict[str, Any]:
        try:
            with reader_errors("{reason}"):
                result = function(*arguments)
                float(result["rewards"])
                return dict(result)
        except DataError as error:
            reason = f"{type(error.__cause__).__name__}: {error}"
        return {"rewards": None, "extra_logs": {FAILED: reason}}

    return graded


def with_turn_rewards(environment: type) -> type:
    """An agent's environment that also notes the reward that it gave for each turn.

    OpenRLHF returns the sum alone, so the rewards travel in `extra_logs`.
    """

    class Noting(environment):
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            self._swap_turn_rewards: list[float] = []

        async def step(self, *arguments: Any, **more: Any) -> dict[str, Any]:
            result = await super().step(*arguments, **more)
            self._swap_turn_rewards.append(float(result["rewards"]))
            noted = {TURN_REWARDS: [*self._swap_turn_rewards]}
            logs = {**(result.get("extra_logs") or {}), **noted}
            return {**result, "extra_logs": logs}

    return Noting
