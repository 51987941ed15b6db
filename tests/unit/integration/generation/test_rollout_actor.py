"""What the rollout actor tells the reward function."""

import pytest

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


def test_a_reward_function_that_does_not_ask_stays_as_it_is(told):
    def own(queries, prompts, labels):
        return {"rewards": 1.0}

    assert told(own) is own
    assert told(None) is None
