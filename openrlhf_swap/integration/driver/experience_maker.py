"""The experience maker: ask the policy for step markers, put the objective's advantages in place of the stock ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from openrlhf_swap.algorithm.advantages import unified_advantages
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.generation.conversion import PROBES, on_action_axis, over_actions, read_rollouts
from openrlhf_swap.integration.policy.scoring import ScoredForward
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.batch import Batch
from openrlhf_swap.rollouts.reader import StepReader
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.metrics import StepMetrics, step_metrics
from openrlhf_swap.runs.rollout_log import rollout_rows
from openrlhf_swap.scoring.answer import AnswerBranch, answer_branch
from openrlhf_swap.scoring.shared_prefix import ScoreRequest


class SwapExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with the objective's token-level advantages.

    The outcome term *is* the stock group_norm path: with theta = 0 the advantages are the stock ones, bit by bit.
    After each batch `metrics` and `rollout_table` describe it; the table is empty for one whose scores are not finite.
    """

    def __init__(self, *args: Any, objective: Objective, reader: StepReader, **kwargs: Any) -> None:
        """Takes the arguments of `RemoteExperienceMaker`, the objective, and a reader of its tokenizer's responses."""
        super().__init__(*args, **kwargs)
        self._objective = objective
        self._reader = reader
        self._requests: list[list[ScoreRequest]] | None = None
        self._scored: list[ScoredForward] = []
        self._rollouts: list[Rollout] = []
        self._branches: dict[str, AnswerBranch] = {}
        self.metrics: StepMetrics = {}
        self.rollout_table: list[dict[str, Any]] = []

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """As OpenRLHF's, with every correct response scored in the same dispatch as its log-probabilities."""
        rollouts = [read_rollouts(samples, self._objective, self._reader) for samples in samples_list]
        for samples in samples_list:
            samples.info.pop(PROBES, None)  # no number to log
        self._branches, self.rollout_table = {}, []
        self._requests = [self._build_requests(rows) for rows in rollouts] if self._objective.scores_steps else None
        experiences = super().make_experience(samples_list)

        ordered: dict[int, Rollout] = {}
        for number, (experience, rows) in enumerate(zip(experiences, rollouts, strict=True)):
            if self._requests is not None:
                for request, scores in zip(self._requests[number], self._scored[number].answer_logprobs, strict=True):
                    rows[request.row] = replace(rows[request.row], answer_logprobs=scores.tolist())
            if self._objective.reshapes_responses:
                self._patch_behaviour(experience, rows)
            ordered.update(zip(experience.index, rows, strict=True))
        self._rollouts = [ordered[index] for index in range(len(ordered))]
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """The objective's A[t] in `advantages` and `returns`; SWAP's is beta A_out + theta [correct] A_proc[t]."""
        objective, size = self._objective, self.args.rollout.n_samples_per_prompt
        groups = [self._rollouts[start : start + size] for start in range(0, len(self._rollouts), size)]
        batch = Batch(groups, objective.coefficients, self._reader)
        rewards = objective.rewards(batch).flatten()
        process = objective.token_advantages(batch)

        for experience in experiences:
            experience.rewards = rewards.float()[experience.index]
        experiences = super().compute_advantages_and_returns(experiences)
        outcomes, processes = [], []
        for experience in experiences:
            outcomes.append(self._outcome_term(experience, rewards))
            term = None if process is None else on_action_axis(process.flatten(0, 1), experience, self._rollouts)
            processes.append(torch.zeros_like(outcomes[-1]) if term is None else term)
            experience.advantages = unified_advantages(
                outcomes[-1], term, objective.outcome_weight, objective.process_weight
            )
            experience.returns = experience.advantages.clone()
        self._describe(batch, experiences, outcomes, processes)
        return experiences

    def _describe(
        self, batch: Batch, experiences: list[Experience], outcomes: list[Tensor], processes: list[Tensor]
    ) -> None:
        advantages = [experience.advantages for experience in experiences]
        flat = over_actions(experiences, advantages, outcomes, processes)
        seconds = [scored.seconds for scored in self._scored] if self._requests is not None else []
        self.metrics = step_metrics(
            batch.steps,
            batch.signals,
            advantages=flat[0],
            outcome=flat[1],
            process=flat[2],
            score_seconds=sum(seconds) / self._data_parallel_size(),
            process_weight=self._objective.process_weight,
        )
        self.metrics["swap/thought_unclosed_frac"] = 1 - batch.closed.double().mean().item()
        shown = batch.groups[: self.args.swap_run.rollouts_groups]
        self.rollout_table = rollout_rows(shown, batch.steps, batch.signals, self._reader)

    def _dispatch_forward(self, group: Any, sync_condition: bool, **kwargs: Any) -> list[Any]:
        """The policy's forward takes the requests along."""
        if group is self.actor_model_group and self._requests is not None:
            kwargs["score_requests"] = self._requests
        return super()._dispatch_forward(group, sync_condition, **kwargs)

    def _flatten_results(self, refs: list[Any], duplicate_factor: int) -> list[Any]:
        """Keep what the policy returned beside the log-probabilities, and pass these on."""
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], ScoredForward):
            self._scored = results
            return [scored.action_log_probs for scored in results]
        return results

    def get_cumulative_returns(self, rewards: Tensor, action_mask: Tensor, gamma: float) -> Tensor:
        """As OpenRLHF's, whose loop over tokens keeps all GPUs waiting: .1 s for a row of 6,000 tokens.

        Where a row has one reward at most (no KL penalty in it), a cumulated sum gives the same values bit by bit.
        """
        rewards = action_mask * rewards
        if gamma != 1.0 or (rewards != 0).sum(-1).max() > 1:
            return super().get_cumulative_returns(rewards, action_mask, gamma)
        return rewards.flip(-1).cumsum(-1).flip(-1)

    def _build_requests(self, rollouts: list[Rollout]) -> list[ScoreRequest]:
        """One for each rollout with steps."""
        return [
            ScoreRequest(
                row,
                (rollout.start - 1, *(rollout.start + end for end in rollout.step_ends)),
                self._branch(rollout.answer),
            )
            for row, rollout in enumerate(rollouts)
            if rollout.step_ends
        ]

    def _branch(self, answer: str) -> AnswerBranch:
        if answer not in self._branches:
            self._branches[answer] = answer_branch(self.tokenizer, self._objective.config.close_template, answer)
        return self._branches[answer]

    def _patch_behaviour(self, experience: Experience, rollouts: list[Rollout]) -> None:
        """Forced first tokens were not drawn from the policy: the objective knows their log-probability."""
        for row, rollout in enumerate(rollouts):
            action = rollout.start - 1
            logprob = experience.action_log_probs[row, action].item()
            experience.action_log_probs[row, action] = self._objective.first_logprob(rollout, logprob)

    def _outcome_term(self, experience: Experience, rewards: Tensor) -> Tensor:
        """(B, A) the normalised outcome rewards; for group normalisation what the stock path made of them.

        Seven rewards of 0.95 have a float32 deviation of 6e-8, which the stock division by (deviation + 1e-9) turns
        into advantages of 0.9: a group without spread gets 0. (With a KL penalty in the reward the stock values stay:
        they then hold more than the outcome.)
        """
        if self._objective.normaliser != "group":
            if self._objective.normaliser == "centre":
                groups = rewards.view(-1, self.args.rollout.n_samples_per_prompt)
                rewards = (groups - groups.mean(-1, keepdim=True)).flatten()
            return rewards.float()[experience.index].unsqueeze(-1) * experience.action_mask
        if self.kl_ctl.value > 0 and not self.args.algo.kl.use_loss:
            return experience.advantages
        spread = experience.info["group_reward_std"].unsqueeze(-1) > self._objective.coefficients.eps
        return torch.where(spread, experience.advantages, 0.0)

    def _data_parallel_size(self) -> int:
        ds = self.args.ds
        return int(policy_ranks(self.args) // (ds.ring_attn_size * ds.tensor_parallel_size))
