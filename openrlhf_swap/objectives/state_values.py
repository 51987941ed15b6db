"""A critic of states in the hands of an objective: values in place, its metrics, and one warning."""

from __future__ import annotations

import torch
from torch import Tensor

from openrlhf_swap.algorithm.length_critic import StateBatch
from openrlhf_swap.algorithm.state_critic import StateCritic


class StateValues:
    """Predicts a return at each state of a batch, and remembers how well."""

    def __init__(self, critic: StateCritic | None = None) -> None:
        """Take a critic; a new one if None."""
        self.critic = critic or StateCritic()
        self._metrics: dict[str, float] = {}
        self._warned = False

    def of(self, batch: StateBatch, returns: Tensor, mask: Tensor) -> Tensor:
        """(G, N, K+1) float64 the predicted returns, 0 where there is none; the critic learns from the true ones.

        Args:
            batch: the states.
            returns: (G, N, K+1) what was still to come at each.
            mask: (G, N, K+1) bool, the states that have a return.

        Raises:
            NonFiniteError: for a state that is not finite.
        """
        values = torch.zeros_like(returns)
        if not mask.any():
            return values
        chosen = mask[batch.state_mask]
        predicted, r2, solved = self.critic.predict(batch.states[chosen], returns[mask], batch.group_of_state(mask))
        values[mask] = predicted
        self._metrics = {"swap/critic_r2": r2, "swap/critic_unsolved": float(not solved)}
        if not solved and not self._warned:
            self._warned = True
            print(
                "[swap] warning: what is left cannot be predicted from this batch's states (too few groups, or states "
                "that do not differ): the mean of each group takes its place; swap/critic_unsolved counts such steps",
                flush=True,
            )
        return values

    def metrics(self) -> dict[str, float]:
        """Of the last batch."""
        return self._metrics
