"""The policy and the reference model as the loop sees them."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController

from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.driver.experience import SwapExperienceMaker, experience_row
from openrlhf_swap.integration.driver.waiting import results, tell_engines
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.checkpoints import LoopStates
from openrlhf_swap.runs.metrics import Metrics
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.signals import WantedSignals

NOTICE_SECONDS = 2  # that vLLM needs to notice that its engine has ended
BRANCHES = 10_000  # reference answers whose tokens are remembered


@dataclass(frozen=True)
class Forward:
    """The result of a forward of the policy and the reference model over a batch.

    Attributes:
        micro_batches: OpenRLHF's, whose rows find their rollout by `Experience.index`.
        rollouts: the rollouts in order, with their log-probabilities and signals.
        scoring_seconds: what reading the signals took, the mean of the ranks.
    """

    micro_batches: list[Experience]
    rollouts: list[Rollout]
    scoring_seconds: float


class Policy:
    """The processes of the policy and of the reference model."""

    def __init__(
        self, strategy: Any, tokenizer: Any, actors: Any, reference: Any, engines: list[Any]
    ) -> None:
        """Take OpenRLHF's strategy, actor groups (no reference model for None) and engines."""
        self._args = strategy.args
        self._actors = actors
        self._engines = engines
        kl_controller = FixedKLController(self._args.algo.kl.init_coef)
        self.experience_maker = partial(
            SwapExperienceMaker, actors, None, None, reference, kl_controller, strategy, tokenizer
        )
        """Makes OpenRLHF's experience maker for one batch."""
        self._reference = (
            None if reference is None else Policy(strategy, tokenizer, reference, None, [])
        )
        template = self._args.swap.close_template
        self._branch = lru_cache(BRANCHES)(partial(answer_branch, tokenizer, template))

    def forward(self, rollouts: Sequence[Rollout], objective: Objective) -> Forward:
        """Ask the policy for log-probabilities and for what else the objective needs.

        The reference model reads the same rows, or the responses after `teacher_prompt_ids`.
        """
        rows = [experience_row(rollout, self._args.data.max_len) for rollout in rollouts]
        maker = self.experience_maker()
        micro_batches = maker.split_rollout_samples(rows)
        requests = self._requests(micro_batches, rollouts, objective)
        if objective.wanted_signals:
            maker.requests = {
                "requests": requests,
                "wanted": [objective.wanted_signals] * len(requests),
            }
        teacher = self._reference if rollouts[0].teacher_prompt_ids else None
        if teacher is not None:
            # The maker would let the reference model read the rows, with the policy's prompts.
            maker.initial_model_group = None
        micro_batches = maker.make_experience(micro_batches)
        if teacher is not None:
            taught = [replace(each, prompt_ids=each.teacher_prompt_ids) for each in rollouts]
            of_teacher = teacher.forward(taught, objective).rollouts
            _set_reference_logprobs(micro_batches, rollouts, of_teacher)
        known = list(rollouts)
        if not self._args.swap_run.reuse_logprobs:
            known = _with_logprobs(rollouts, micro_batches)
        if maker.answers:
            known = _with_signals(known, micro_batches, requests, maker.answers)
        for micro_batch in micro_batches:
            _set_chances(micro_batch, known)
        seconds = sum(answer.seconds for answer in maker.answers)
        return Forward(micro_batches, known, seconds / policy_ranks(self._args))

    def update(self, micro_batches: list[Experience]) -> Metrics:
        """Update the policy once with the whole batch; returns what OpenRLHF reports."""
        args = self._args
        if args.train.dynamic_batch_enable:
            micro_batches = balance_experiences(micro_batches, args)
        appending = self._actors.async_run_method_batch("append", experience=micro_batches)
        results(appending, args, "append() of the policy")
        if args.ds.enable_sleep:
            self._do("reload_states")
        status: Metrics = {}
        for of_rank in self._do("fit", kl_ctl=args.algo.kl.init_coef):
            status |= of_rank
        if args.ds.enable_sleep:
            self._do("offload_states")
        return status

    def _do(self, method: str, **how: Any) -> list[Any]:
        """The results of a method of the policy's ranks; raises RunError if one is stuck."""
        refs = self._actors.async_run_method(method, **how)
        return results(refs, self._args, f"{method}() of the policy")

    def publish(self) -> None:
        """Send the weights to the engines.

        Engines that sleep wake up for the weights alone: their caches stay asleep.
        Raises RunError for an engine that is stuck, EngineDeadError for one that ended.
        """
        args = self._args
        if args.vllm.enable_sleep:
            tell_engines(self._engines, args, "wake_up", tags=["weights"])
        sending = self._actors.async_run_method("broadcast_to_vllm")
        try:
            results(sending, args, "the transfer of weights to the rollout engines", least=0)
        except ray.exceptions.RayTaskError:
            time.sleep(NOTICE_SECONDS)
            tell_engines(self._engines, args, "check_health")
            raise

    def save(self, tag: str, states: LoopStates) -> None:
        """Write a checkpoint with the loop's states."""
        self._do("save_checkpoint", tag=tag, client_states=states)

    def restored_states(self) -> LoopStates:
        """The loop's states of the checkpoint that the policy has loaded; empty for none."""
        return self._do("get_checkpoint_states")[0]

    def _requests(
        self, micro_batches: Sequence[Experience], rollouts: Sequence[Rollout], objective: Objective
    ) -> list[list[ScoreRequest]]:
        """The requests of the objective for the responses of each micro-batch."""
        config = objective.config
        wanted = WantedSignals(
            objective.wanted_signals, self._branch, config.need_window, config.need_every
        )
        requests = []
        for micro_batch in micro_batches:
            rows = enumerate(micro_batch.index)
            asked = [wanted.request(row, rollouts[index]) for row, index in rows]
            requests.append([request for request in asked if request is not None])
        return requests


def _with_logprobs(
    rollouts: Sequence[Rollout], micro_batches: Sequence[Experience]
) -> list[Rollout]:
    """The rollouts with the log-probabilities of their tokens."""
    known = list(rollouts)
    for micro_batch in micro_batches:
        for row, index in enumerate(micro_batch.index):
            actions = rollouts[index].positions - 1
            logprobs = micro_batch.action_log_probs[row, actions]
            known[index] = replace(rollouts[index], logprobs=logprobs)
    return known


def _set_reference_logprobs(
    micro_batches: Sequence[Experience], rollouts: Sequence[Rollout], of_teacher: Sequence[Rollout]
) -> None:
    """Set what the reference model says of each response to the teacher's log-probabilities."""
    for micro_batch in micro_batches:
        logprobs = torch.zeros_like(micro_batch.action_log_probs)
        for row, index in enumerate(micro_batch.index):
            logprobs[row, rollouts[index].positions - 1] = of_teacher[index].logprobs
        micro_batch.base_action_log_probs = logprobs


def _with_signals(
    rollouts: Sequence[Rollout],
    micro_batches: Sequence[Experience],
    requests: Sequence[Sequence[ScoreRequest]],
    answers: Sequence[ScoredForward],
) -> list[Rollout]:
    """The rollouts with the signals that were requested of them."""
    known = list(rollouts)
    for micro_batch, asked, answer in zip(micro_batches, requests, answers, strict=True):
        for request, signals in zip(asked, answer.signals, strict=True):
            index = micro_batch.index[request.row]
            known[index] = rollouts[index].with_signals(**signals)
    return known


def _set_chances(experience: Experience, rollouts: Sequence[Rollout]) -> None:
    """Count the choice of a part (`SamplingRequest.chance`) in the first log-probability."""
    for row, index in enumerate(experience.index):
        rollout = rollouts[index]
        if "chance" not in rollout.metadata:
            continue
        first = rollout.start - 1
        chance = math.log(rollout.metadata["chance"])
        if not rollout.metadata["forced"]:
            chance += experience.action_log_probs[row, first].item()
        experience.action_log_probs[row, first] = chance
