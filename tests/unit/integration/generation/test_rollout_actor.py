"""What the rollout actor tells the reward function."""

import pytest

from openrlhf_swap.errors import DataError
from openrlhf_swap.integration.generation.response import reward_of
from openrlhf_swap.rewards.openrlhf_reward import reward_func


@pytest.fixture
def told():
    """A reward function as the actor calls it, after it was told what closes a thought."""
    from openrlhf.utils.agent import SingleTurnAgentExecutor

    from openrlhf_swap.integration.generation.rollout_actor import SwapRolloutActor

    class Actor(SwapRolloutActor):
        """Without an engine: it grades only."""

        def __init__(self, function):
            self.executor = SingleTurnAgentExecutor(None)
            self.executor.reward_func = function

    def tell(function, **settings):
        actor = Actor(function)
        actor.configure_reward(end_of_thought="[/THINK]", **settings)
        return actor.executor.reward_func

    return tell


def test_our_reward_function_reads_the_thought_of_the_models_family(told):
    query = r"p \boxed{41}[/THINK]\boxed{42}"
    assert told(reward_func)([query], ["p "], ["41"])["rewards"] == 0.0
    assert told(reward_func)([query], ["p "], ["42"])["rewards"] == 1.0


def test_a_reward_function_that_does_not_ask_is_called_as_it_is(told):
    asked = []

    def own(queries, prompts, labels):
        asked.append((queries, prompts, labels))
        return {"rewards": 1.0, "extra_logs": {"mine": 2.0}}

    assert told(own)(["pr"], ["p"], ["l"]) == {"rewards": 1.0, "extra_logs": {"mine": 2.0}}
    assert asked == [(["pr"], ["p"], ["l"])]
    assert told(None) is None


def test_a_reward_function_that_fails_says_why(told):
    """OpenRLHF drops what a reward function raises; the trainer names it."""
    functions = {
        "ZeroDivisionError: division by zero": lambda queries, prompts, labels: {"rewards": 1 / 0},
        "KeyError: 'rewards'": lambda queries, prompts, labels: {"scores": 1.0},
        "TypeError: 'float' object is not subscriptable": lambda queries, prompts, labels: 1.0,
        "TypeError: float() argument must be a string or a real number, not 'NoneType'": (
            lambda queries, prompts, labels: {"rewards": None}
        ),
    }
    for reason, function in functions.items():
        result = told(function)(["pr"], ["p"], ["l"])
        response = {"reward": result["rewards"], "extra_logs": result["extra_logs"]}
        with pytest.raises(DataError) as error:
            reward_of(response)
        assert str(error.value) == (
            f"the reward function of --reward.remote_url gave no reward for a response: {reason}"
        )
