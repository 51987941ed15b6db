"""OpenRLHF's experience maker with the objective's token-level advantages.

Shapes: B rows of a micro-batch, T tokens of its longest row, A = T - 1 actions: action t is the
prediction of token t + 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from openrlhf_swap.algorithm.advantages import unified_advantages
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.base import Objective


@dataclass(frozen=True)
class AdvantageTerms:
    """The advantages of all actions of a batch, and the two terms that they consist of.

    All are (actions,); `outcome` and `process` are not weighted.
    """

    advantages: Tensor
    outcome: Tensor
    process: Tensor


class SwapExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker, whose token-level advantages are the objective's.

    The outcome term *is* the stock group_norm path: with theta = 0 the advantages are the stock
    ones, bit for bit.
    """

    def ask(
        self,
        micro_batches: list[Experience],
        requests: Mapping[str, Sequence[Any]],
    ) -> tuple[list[Experience], list[ScoredForward]]:
        """Let the policy and the reference model run over the micro-batches.

        `requests` has, by the actor's argument, what is asked of each micro-batch. Returns the
        micro-batches with their log-probabilities, and an answer for each if anything was asked.
        """
        self._requests = requests
        self._answers: list[ScoredForward] = []
        return self.make_experience(micro_batches), self._answers

    def _dispatch_forward(self, group: Any, sync_condition: bool, **batch: Any) -> list[Any]:
        """Overrides RemoteExperienceMaker: the policy also gets the requests."""
        if group is self.actor_model_group:
            batch |= self._requests
        return super()._dispatch_forward(group, sync_condition, **batch)

    def _flatten_results(self, refs: list[Any], duplicate_factor: int) -> list[Any]:
        """Overrides RemoteExperienceMaker: takes the log-probabilities out of the answers."""
        results = super()._flatten_results(refs, duplicate_factor)
        self._answers += [result for result in results if isinstance(result, ScoredForward)]
        return [
            result.action_log_probs if isinstance(result, ScoredForward) else result
            for result in results
        ]

    @torch.no_grad()
    def set_advantages(
        self,
        experiences: list[Experience],
        objective: Objective,
        rewards: Tensor,
        token_advantages: Tensor | None,
    ) -> AdvantageTerms:
        """Make `advantages` and `returns` of the micro-batches the objective's A[t].

        SWAP's is A[t] = beta A_out + theta [correct] A_proc[t]. `rewards` (G, N) and
        `token_advantages` (G, N, tokens of the longest response) are what `objectives.base.
        evaluate` returned for the batch.
        """
        flat_rewards = rewards.flatten()
        for experience in experiences:
            experience.rewards = flat_rewards.float()[experience.index]
        terms = []
        for experience in self.compute_advantages_and_returns(experiences):
            outcome = self._outcome_term(experience, flat_rewards, objective)
            process = _on_actions(token_advantages, experience)
            experience.advantages = unified_advantages(
                outcome, process, objective.outcome_weight, objective.process_weight
            )
            experience.returns = experience.advantages.clone()
            if process is None:
                process = torch.zeros_like(outcome)
            is_action = experience.action_mask.bool()
            terms.append([each[is_action] for each in (experience.advantages, outcome, process)])
        return AdvantageTerms(*map(torch.cat, zip(*terms, strict=True)))

    def get_cumulative_returns(
        self,
        rewards: Tensor,
        action_mask: Tensor,
        gamma: float,
    ) -> Tensor:
        """Overrides RemoteExperienceMaker: the same bits for a gamma of 1.

        OpenRLHF's loop over tokens takes 0.05 s a response.
        """
        # NumPy adds one float32 after the other, as the loop does; torch.cumsum adds in float64.
        from_the_end = (action_mask * rewards).flip(-1).numpy()
        return torch.from_numpy(np.add.accumulate(from_the_end, axis=-1)).flip(-1)

    def _outcome_term(
        self,
        experience: Experience,
        rewards: Tensor,
        objective: Objective,
    ) -> Tensor:
        """(B, A) the normalised outcome rewards; with group normalisation, the stock advantages.

        Seven rewards of 0.95 have a float32 deviation of 6e-8, which the stock division by
        (deviation + 1e-9) turns into advantages of 0.9: a group without spread gets 0, unless a KL
        penalty in the reward adds to the outcome.
        """
        if objective.normaliser == "group":
            if self.kl_ctl.value > 0 and not self.args.algo.kl.use_loss:
                return experience.advantages
            deviation = experience.info["group_reward_std"].unsqueeze(-1)
            return torch.where(deviation > objective.coefficients.eps, experience.advantages, 0.0)
        if objective.normaliser == "centre":
            groups = rewards.view(-1, self.args.rollout.n_samples_per_prompt)
            rewards = (groups - groups.mean(-1, keepdim=True)).flatten()
        return rewards.float()[experience.index].unsqueeze(-1) * experience.action_mask


def _on_actions(values: Tensor | None, experience: Experience) -> Tensor | None:
    """(B, A) the values of response tokens, moved to their actions; `values` is (G, N, tokens)."""
    if values is None:
        return None
    flat = values.flatten(0, 1)
    moved = torch.zeros(experience.action_mask.shape, dtype=values.dtype)
    for row, index in enumerate(experience.index):
        actions = experience.action_mask[row].nonzero().flatten()
        moved[row, actions] = flat[index, : len(actions)]
    return moved
