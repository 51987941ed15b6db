"""A term of the tokens' advantages that an environment's rewards for the turns of an agent make."""

from torch import Tensor

from openrlhf_swap.algorithm.advantages import process_advantages, standardise
from openrlhf_swap.algorithm.batch import StepBatch
from openrlhf_swap.algorithm.coefficients import Coefficients
from openrlhf_swap.algorithm.signals import TURN_REWARD


def turn_advantages(batch: StepBatch, coefficients: Coefficients, tokens: int) -> Tensor:
    """(G, N, A) float64 A_turn[t], the sum of gamma^n e~_k over the steps from the token's own on.

    e_k is the reward of the turn that ends with step k, 0 for a step within a turn. e~ = (e -
    mu)/(sigma + eps), pooled over the steps of all responses of a group, correct or not; without a
    spread it is 0. n and gamma are as in `process_advantages`. Raises ValueError for responses
    without rewards by turn.
    """
    if TURN_REWARD.name not in batch.signals:
        raise ValueError(
            "--swap.turn_weight is above 0, but the responses have no rewards by turn; give "
            f"StepTrace signals={{'{TURN_REWARD.name}': ...}}"
        )
    rewards = batch.signals[TURN_REWARD.name]
    exists = batch.has_step
    normalised = standardise(rewards.flatten(1), exists.flatten(1), coefficients.eps)
    normalised = normalised.view_as(rewards)
    discount = coefficients.step_discount
    return process_advantages(normalised, batch.step_ends, exists, tokens, discount)
