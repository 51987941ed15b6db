"""The experience maker: ask the policy for step markers, put the objective's advantages in place of the stock ones."""

from __future__ import annotations

from typing import Any

import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from openrlhf_swap.integration.policy_actor import ScoredForward
from openrlhf_swap.integration.sampling import NOTE
from openrlhf_swap.metrics import StepMetrics, step_metrics
from openrlhf_swap.objectives.base import Batch, Objective
from openrlhf_swap.rollout import Rollout
from openrlhf_swap.rollout_log import rollout_rows
from openrlhf_swap.scoring.answer import AnswerBranch, answer_branch
from openrlhf_swap.scoring.reasoning import StepReader
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
        self._config = objective.config
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
        rollouts = [self._read_rollouts(samples) for samples in samples_list]
        self._branches, self.rollout_table = {}, []
        self._requests = [self._build_requests(rows) for rows in rollouts] if self._objective.scores_steps else None
        experiences = super().make_experience(samples_list)

        ordered: dict[int, Rollout] = {}
        for number, (experience, rows) in enumerate(zip(experiences, rollouts, strict=True)):
            if self._requests is not None:
                for request, scores in zip(self._requests[number], self._scored[number].answer_logprobs, strict=True):
                    rows[request.row].answer_logprobs = scores.tolist()
            if self._objective.reshapes_responses:
                self._patch_behaviour(experience, rows)
            ordered.update(zip(experience.index, rows, strict=True))
        self._rollouts = [ordered[index] for index in range(len(ordered))]
        return experiences

    @torch.no_grad()
    def compute_advantages_and_returns(self, experiences: list[Experience]) -> list[Experience]:
        """The objective's A[t] in `advantages` and `returns`; SWAP's is beta A_out + theta [correct] A_proc[t]."""
        size = self.args.rollout.n_samples_per_prompt
        groups = [self._rollouts[start : start + size] for start in range(0, len(self._rollouts), size)]
        batch = Batch(groups, self._objective.recipe, self._config.eps, self._reader)
        rewards = self._objective.rewards(batch).flatten()
        token_term = self._objective.token_term(batch)

        for experience in experiences:
            experience.rewards = rewards.float()[experience.index]
        experiences = super().compute_advantages_and_returns(experiences)
        outcome = [self._outcome_term(experience, rewards) for experience in experiences]
        process = [self._token_term(experience, token_term) for experience in experiences]
        for experience, outcome_term, process_term in zip(experiences, outcome, process, strict=True):
            experience.advantages = self._objective.outcome_weight * outcome_term
            if token_term is not None:
                experience.advantages = experience.advantages + process_term
            experience.returns = experience.advantages.clone()

        seconds = [scored.seconds for scored in self._scored] if self._requests is not None else []
        self.metrics = step_metrics(
            batch.steps,
            batch.signals,
            advantages=_masked(experiences, [experience.advantages for experience in experiences]),
            outcome=_masked(experiences, outcome),
            process=_masked(experiences, process),
            score_seconds=sum(seconds) / self._data_parallel_size(),
        )
        shown = range(min(len(groups), self._config.rollouts_groups))
        self.rollout_table = rollout_rows([groups[g] for g in shown], batch.steps, batch.signals, self._reader)
        return experiences

    def _dispatch_forward(self, group: Any, sync_condition: bool, **kwargs: Any) -> list:
        """The policy's forward takes the requests along."""
        if group is self.actor_model_group and self._requests is not None:
            kwargs["score_requests"] = self._requests
        return super()._dispatch_forward(group, sync_condition, **kwargs)

    def _flatten_results(self, refs: list, duplicate_factor: int) -> list:
        """Keep what the policy returned beside the log-probabilities, and pass these on."""
        results = super()._flatten_results(refs, duplicate_factor)
        if results and isinstance(results[0], ScoredForward):
            self._scored = results
            return [scored.action_log_probs for scored in results]
        return results

    def _read_rollouts(self, samples: Experience) -> list[Rollout]:
        rollouts = []
        for row in range(len(samples.sequences)):
            actions = samples.action_mask[row].nonzero().flatten()
            start = int(actions[0]) + 1 if len(actions) else samples.sequences.shape[1]
            response_ids = samples.sequences[row, start : start + len(actions)].tolist()
            reward = float(samples.rewards[row])
            scored = reward > 0 and self._objective.scores_steps
            step_ends = self._reader.step_ends(response_ids) if scored else []
            notes = {
                name.removeprefix(NOTE): float(values[row])
                for name, values in samples.info.items()
                if name.startswith(NOTE)
            }
            rollouts.append(
                Rollout(samples.prompts[row], samples.labels[row], response_ids, start, reward, step_ends, [], notes)
            )
        return rollouts

    def _build_requests(self, rollouts: list[Rollout]) -> list[ScoreRequest]:
        """Only correct responses with steps are scored: nothing else enters the process term."""
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
            self._branches[answer] = answer_branch(self.tokenizer, self._config.close_template, answer)
        return self._branches[answer]

    def _patch_behaviour(self, experience: Experience, rollouts: list[Rollout]) -> None:
        """Forced first tokens were not drawn from the policy: the objective knows their log-probability."""
        for row, rollout in enumerate(rollouts):
            action = rollout.start - 1  # action t is the prediction of token t + 1
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
        spread = experience.info["group_reward_std"].unsqueeze(-1) > self._config.eps
        return torch.where(spread, experience.advantages, 0.0)

    def _token_term(self, experience: Experience, term: Tensor | None) -> Tensor:
        """(B, A) float32, the objective's term on the axis of `experience.advantages`."""
        moved = torch.zeros(experience.action_mask.shape, dtype=torch.float32)
        if term is None:
            return moved
        rows = term.flatten(0, 1).float()
        for row, index in enumerate(experience.index):
            rollout = self._rollouts[index]
            first, length = rollout.start - 1, len(rollout.response_ids)
            moved[row, first : first + length] = rows[index, :length]
        return moved

    def _data_parallel_size(self) -> int:
        args = self.args
        return (
            args.actor.num_nodes
            * args.actor.num_gpus_per_node
            // (args.ds.ring_attn_size * args.ds.tensor_parallel_size)
        )


def _masked(experiences: list[Experience], values: list[Tensor]) -> Tensor:
    """All action tokens' values in one flat tensor."""
    pairs = zip(experiences, values, strict=True)
    return torch.cat([value[experience.action_mask.bool()] for experience, value in pairs])
