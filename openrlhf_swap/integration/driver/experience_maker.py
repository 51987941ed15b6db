"""The experience maker: asks the policy for step scores and replaces the advantages by the
objective's.
"""

import math
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from openrlhf_swap.algorithm.advantages import unified_advantages
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.generation.sampling import Sample
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.base import Objective, evaluate
from openrlhf_swap.rollouts.rollout import Batch, Rollout, StepReader
from openrlhf_swap.runs.metrics import rollout_rows, step_metrics, turn_metrics
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.signals import WantedSignals


class SwapExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker with the objective's token-level advantages.

    The outcome term *is* the stock group_norm path: with theta = 0 the advantages are the stock
    ones, bit for bit.

    Shapes: B rows of a micro-batch, T tokens a row, A = T - 1 actions: action t is the prediction
    of token t + 1.
    """

    def __init__(
        self, stock: RemoteExperienceMaker, objective: Objective, reader: StepReader
    ) -> None:
        groups = (
            stock.actor_model_group,
            stock.critic_model_group,
            stock.reward_model_group,
            stock.initial_model_group,
        )
        super().__init__(*groups, stock.kl_ctl, stock.strategy, stock.tokenizer)
        self._objective, self._reader = objective, reader
        branch = partial(answer_branch, self.tokenizer, objective.config.close_template)
        names = []
        if objective.scores_steps:
            names.append("answer_logprobs")
        if objective.reads_states:
            names.append("states")
        splits_observations = objective.config.observation_gain == "none"
        self._wanted = WantedSignals(tuple(names), lru_cache(10_000)(branch), splits_observations)
        self._rollouts: list[Rollout] = []  # of the batch, in the order of `Experience.index`
        self._asked: dict[
            str, list[Any]
        ] = {}  # what the policy's forward is asked beside log-probabilities
        self._scored: list[
            ScoredForward
        ] = []  # its answers, one for each micro-batch; empty if nothing was asked
        self.metrics: dict[str, float] = {}
        self.rollout_table: list[dict[str, Any]] = []

    def split_rollout_samples(self, rollout_samples: list[Sample]) -> list[Experience]:
        """Overrides RemoteExperienceMaker, which numbers the samples: takes their rollouts in the
        same order.
        """
        self.rollout_table = []
        self._rollouts = [self._find_steps(sample.rollout) for sample in rollout_samples]
        return super().split_rollout_samples(rollout_samples)

    @torch.no_grad()
    def make_experience(self, samples_list: list[Experience]) -> list[Experience]:
        """Overrides RemoteExperienceMaker: the dispatch for log-probabilities also scores the
        correct responses.
        """
        requests = [self._build_requests(samples) for samples in samples_list]
        self._asked, self._scored = {}, []
        if self._wanted.names:
            self._asked = {"requests": requests, "signals": [self._wanted.names] * len(requests)}
        experiences = super().make_experience(samples_list)
        for number, scored in enumerate(self._scored):
            for request, signals in zip(requests[number], scored.signals, strict=True):
                index = experiences[number].index[request.row]
                self._rollouts[index] = self._rollouts[index].with_signals(**signals)
        for experience in experiences:
            for row, index in enumerate(experience.index):
                logprobs = experience.action_log_probs[row, self._rollouts[index].positions - 1]
                self._remember(experience, row, logprobs=logprobs)
            if self._objective.reshapes_responses:
                self._patch_behaviour(experience)
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """The objective's A[t] in `advantages` and `returns`; SWAP's is beta A_out + theta
        [correct] A_proc[t].
        """
        objective, size = self._objective, self.args.rollout.n_samples_per_prompt
        groups = [
            self._rollouts[start : start + size] for start in range(0, len(self._rollouts), size)
        ]
        batch = Batch(groups, objective.coefficients, self._reader)
        rewards, process = evaluate(objective, batch)
        rewards = rewards.flatten()
        for experience in experiences:
            experience.rewards = rewards.float()[experience.index]
        experiences = super().compute_advantages_and_returns(experiences)
        values = []  # of each experience's actions
        for experience in experiences:
            outcome = self._outcome_term(experience, rewards)
            term = (
                None
                if process is None
                else self._align_with_actions(process.flatten(0, 1), experience)
            )
            weights = objective.outcome_weight, objective.process_weight
            experience.advantages = unified_advantages(outcome, term, *weights)
            experience.returns = experience.advantages.clone()
            actions = experience.action_mask.nonzero(as_tuple=True)
            terms = (
                experience.advantages,
                outcome,
                torch.zeros_like(outcome) if term is None else term,
            )
            values.append([each[actions] for each in terms])
        self._describe(batch, *map(torch.cat, zip(*values, strict=True)))
        return experiences

    def _describe(self, batch: Batch, advantages: Tensor, outcome: Tensor, process: Tensor) -> None:
        weight = self._objective.process_weight
        self.metrics = step_metrics(
            batch.steps, batch.signals, advantages, outcome, process, weight
        )
        self.metrics["timing/score"] = sum(
            scored.seconds for scored in self._scored
        ) / policy_ranks(self.args)
        self.metrics |= turn_metrics(batch.groups, batch.signals.penalties)
        self.metrics["swap/thought_unclosed_frac"] = 1 - batch.closed.double().mean().item()
        shown = batch.groups[: self.args.swap_run.rollouts_groups]
        left = self._objective.predicted_tokens_left
        self.rollout_table = rollout_rows(shown, batch.steps, batch.signals, self._reader, left)

    def _dispatch_forward(self, group: Any, sync_condition: bool, **kwargs: Any) -> list[Any]:
        asked = self._asked if group is self.actor_model_group else {}
        return super()._dispatch_forward(group, sync_condition, **kwargs, **asked)

    def _flatten_results(self, refs: list[Any], duplicate_factor: int) -> list[Any]:
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], ScoredForward):
            self._scored = results
            return [scored.action_log_probs for scored in results]
        return results

    def get_cumulative_returns(self, rewards: Tensor, action_mask: Tensor, gamma: float) -> Tensor:
        """Overrides RemoteExperienceMaker with the same bits for a gamma of 1; its loop takes 0.05
        s a response.
        """
        # NumPy adds one float32 after the other, as the loop does; torch.cumsum adds in float64.
        from_the_end = (action_mask * rewards).flip(-1).numpy()
        return torch.from_numpy(np.add.accumulate(from_the_end, axis=-1)).flip(-1)

    def _find_steps(self, rollout: Rollout) -> Rollout:
        """The rollout with its step ends, if any signal of its steps is wanted."""
        if not self._wanted.of(rollout):
            return rollout
        ends = self._reader.step_ends(rollout.response_ids, rollout.turn_starts)
        return replace(rollout, step_ends=ends)

    def _build_requests(self, samples: Experience) -> list[ScoreRequest]:
        rollouts = [self._rollouts[index] for index in samples.index]
        requests = [self._wanted.request(row, rollout) for row, rollout in enumerate(rollouts)]
        return [request for request in requests if request is not None]

    def _remember(self, experience: Experience, row: int, **values: Any) -> None:
        index = experience.index[row]
        self._rollouts[index] = replace(self._rollouts[index], **values)

    def _align_with_actions(self, values: Tensor, experience: Experience) -> Tensor:
        """(B, A) the values of response tokens, (rollouts of the batch, longest response), moved to
        their actions.
        """
        moved = torch.zeros(experience.action_mask.shape, dtype=values.dtype)
        for row, index in enumerate(experience.index):
            actions = self._rollouts[index].positions - 1
            moved[row, actions] = values[index, : len(actions)]
        return moved

    def _patch_behaviour(self, experience: Experience) -> None:
        """Count the choice of a part of the group (`SamplingRequest.chance`) in the first token's
        log-probability.
        """
        for row, index in enumerate(experience.index):
            rollout = self._rollouts[index]
            if "chance" in rollout.metadata:
                action = rollout.start - 1
                own = (
                    0.0
                    if rollout.metadata["forced"]
                    else experience.action_log_probs[row, action].item()
                )
                experience.action_log_probs[row, action] = (
                    math.log(rollout.metadata["chance"]) + own
                )

    def _outcome_term(self, experience: Experience, rewards: Tensor) -> Tensor:
        """(B, A) the normalised outcome rewards; with group normalisation, those of the stock path.

        Seven rewards of 0.95 have a float32 deviation of 6e-8, which the stock division by
        (deviation + 1e-9) turns into advantages of 0.9: a group without spread gets 0, unless a KL
        penalty in the reward adds to the outcome.
        """
        if self._objective.normaliser != "group":
            if self._objective.normaliser == "centre":
                groups = rewards.view(-1, self.args.rollout.n_samples_per_prompt)
                rewards = (groups - groups.mean(-1, keepdim=True)).flatten()
            return rewards.float()[experience.index].unsqueeze(-1) * experience.action_mask
        if self.kl_ctl.value > 0 and not self.args.algo.kl.use_loss:
            return experience.advantages
        spread = (
            experience.info["group_reward_std"].unsqueeze(-1) > self._objective.coefficients.eps
        )
        return torch.where(spread, experience.advantages, 0.0)
