"""The objective's token-level advantages, in the micro-batches of OpenRLHF.

Shapes: B rows of a micro-batch, T tokens of its longest row, A = T - 1 actions: action t is the
prediction of token t + 1.
"""

from collections.abc import Sequence

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from torch import Tensor

from openrlhf_swap.algorithm.advantages import AdvantageTerms, unified_advantages
from openrlhf_swap.integration.driver.experience import SwapExperienceMaker
from openrlhf_swap.integration.driver.policy import Forward
from openrlhf_swap.objectives.base import JudgedBatch, Objective
from openrlhf_swap.rollouts.rollout import Rollout


@torch.no_grad()
def set_advantages(
    maker: SwapExperienceMaker, forward: Forward, objective: Objective, judged: JudgedBatch
) -> AdvantageTerms:
    """Set `advantages` and `returns` of each micro-batch, (B, A), to the objective's A[t].

    Returns A[t] and its two terms, one value for each action of the batch. SWAP's A[t] is
    beta A_out + theta [correct] A_proc[t]. The outcome term *is* OpenRLHF's group_norm path: with
    theta = 0 the advantages are OpenRLHF's own, bit for bit.
    """
    rewards = judged.rewards.flatten()
    for micro_batch in forward.micro_batches:
        micro_batch.rewards = rewards.float()[micro_batch.index]
    advantages = []
    outcomes = []
    processes = []
    for micro_batch in maker.compute_advantages_and_returns(forward.micro_batches):
        outcome = _outcome_term(micro_batch, rewards, objective, maker)
        process = _on_actions(judged.token_advantages, micro_batch, forward.rollouts)
        micro_batch.advantages = unified_advantages(
            outcome, process, objective.outcome_weight, objective.process_weight
        )
        micro_batch.returns = micro_batch.advantages.clone()
        if process is None:
            process = torch.zeros_like(outcome)
        is_action = micro_batch.action_mask.bool()
        advantages.append(micro_batch.advantages[is_action])
        outcomes.append(outcome[is_action])
        processes.append(process[is_action])
    return AdvantageTerms(torch.cat(advantages), torch.cat(outcomes), torch.cat(processes))


def _outcome_term(
    micro_batch: Experience, rewards: Tensor, objective: Objective, maker: SwapExperienceMaker
) -> Tensor:
    """(B, A) the normalised outcome rewards; with group normalisation, OpenRLHF's advantages.

    Seven rewards of 0.95 have a float32 deviation of 6e-8, which OpenRLHF's division by
    (deviation + 1e-9) turns into advantages of 0.9. So a group without spread gets 0, unless a KL
    penalty in the reward adds to the outcome.
    """
    if objective.normaliser == "group":
        if maker.kl_ctl.value > 0 and not maker.args.algo.kl.use_loss:
            return micro_batch.advantages
        deviation = micro_batch.info["group_reward_std"].unsqueeze(-1)
        return torch.where(deviation > objective.coefficients.eps, micro_batch.advantages, 0.0)
    if objective.normaliser == "centre":
        groups = rewards.view(-1, maker.args.rollout.n_samples_per_prompt)
        rewards = (groups - groups.mean(-1, keepdim=True)).flatten()
    return rewards.float()[micro_batch.index].unsqueeze(-1) * micro_batch.action_mask


def _on_actions(
    values: Tensor | None, micro_batch: Experience, rollouts: Sequence[Rollout]
) -> Tensor | None:
    """(B, A) the values of response tokens, moved to their actions; `values` is (G, N, tokens).

    The value of a token that is no action becomes 0.
    """
    if values is None:
        return None
    flat = values.flatten(0, 1)
    moved = torch.zeros(micro_batch.action_mask.shape, dtype=values.dtype)
    for row, index in enumerate(micro_batch.index):
        actions = rollouts[index].positions - 1
        moved[row, actions] = flat[index, : len(actions)]
    return moved * micro_batch.action_mask
