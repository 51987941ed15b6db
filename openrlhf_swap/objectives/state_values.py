"""What the objectives share that may predict returns from the policy's states."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from openrlhf_swap.algorithm.length_critic import StateBatch
from openrlhf_swap.algorithm.state_critic import StateCritic
from openrlhf_swap.config import SwapConfig
from openrlhf_swap.objectives.base import Objective


class StateObjective(Objective):
    """Has a critic, whose quality is in the metrics; checkpoints hold what its regression learned."""

    def __init__(self, config: SwapConfig) -> None:
        super().__init__(config)
        self.critic = StateCritic()
        self._metrics: dict[str, float] = {}
        self._warned = False

    def predict_returns(self, batch: StateBatch, returns: Tensor, mask: Tensor) -> Tensor:
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
        predicted, r2, solved = self.critic.predict(batch.states[chosen], returns[mask], mask.nonzero()[:, 0])
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
        """How well the states predicted the last batch; nothing before they did."""
        return self._metrics

    def learned(self) -> dict[str, Any]:
        return self.critic.state_dict()

    def load_learned(self, learned: dict[str, Any]) -> None:
        self.critic.load_state_dict(learned)
