"""What the loop asks of the policy and of the reference model."""

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import ray
from openrlhf.trainer.ppo_utils.experience import Experience, balance_experiences
from openrlhf.trainer.ppo_utils.kl_controller import FixedKLController
from openrlhf.trainer.ray.vllm_engine import batch_vllm_engine_call
from torch import Tensor

from openrlhf_swap.errors import RunError
from openrlhf_swap.flags.placement import policy_ranks
from openrlhf_swap.integration.driver.best import States
from openrlhf_swap.integration.driver.experience_maker import AdvantageTerms, SwapExperienceMaker
from openrlhf_swap.integration.driver.rows import experience_row
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.objectives.base import Objective
from openrlhf_swap.rollouts.rollout import Rollout
from openrlhf_swap.runs.metrics import Metrics
from openrlhf_swap.scoring.answer import ScoreRequest, answer_branch
from openrlhf_swap.scoring.signals import WantedSignals

NOTICE_SECONDS = 2  # that vLLM needs to notice that its engine has ended
BRANCHES = 10_000  # reference answers whose tokens are remembered


class Policy:
    """The processes of the policy and of the reference model."""

    def __init__(
        self,
        strategy: Any,
        tokenizer: Any,
        actors: Any,
        reference: Any,
        engines: Sequence[Any],
    ) -> None:
        """Take OpenRLHF's strategy, actor groups (no reference model for None) and engines."""
        self._args = strategy.args
        self._actors = actors
        self._engines = engines
        kl_controller = FixedKLController(self._args.algo.kl.init_coef)
        models = (actors, None, None, reference)
        self._maker = SwapExperienceMaker(*models, kl_controller, strategy, tokenizer)
        template = self._args.swap.close_template
        self._branch = lru_cache(BRANCHES)(partial(answer_branch, tokenizer, template))
        self.scoring_seconds = 0.0  # of the last `forward`, the mean of the ranks

    def forward(
        self, rollouts: Sequence[Rollout], objective: Objective
    ) -> tuple[list[Experience], list[Rollout]]:
        """Ask the policy for log-probabilities and for what else the objective needs.

        Returns the micro-batches, whose rows find their rollout by `Experience.index`, and the
        rollouts with their log-probabilities and signals.
        """
        context = self._args.data.max_len
        rows = [experience_row(rollout, context) for rollout in rollouts]
        micro_batches = self._maker.split_rollout_samples(rows)
        requests = self._requests(micro_batches, rollouts, objective)
        asked: dict[str, Sequence[Any]] = {}
        if objective.wanted_signals:
            wanted = [objective.wanted_signals] * len(requests)
            asked = {"requests": requests, "wanted": wanted}
        experiences, answers = self._maker.ask(micro_batches, asked)
        known = self._read_answers(experiences, rollouts, requests, answers)
        if objective.reshapes_responses:
            for experience in experiences:
                _set_chances(experience, known)
        return experiences, known

    def set_advantages(
        self,
        experiences: list[Experience],
        objective: Objective,
        rewards: Tensor,
        token_advantages: Tensor | None,
    ) -> AdvantageTerms:
        """Put the advantages into the micro-batches."""
        return self._maker.set_advantages(experiences, objective, rewards, token_advantages)

    def update(self, experiences: list[Experience]) -> Metrics:
        """Update the policy once with the whole batch; returns what OpenRLHF reports."""
        args = self._args
        if args.train.dynamic_batch_enable:
            experiences = balance_experiences(experiences, args)
        ray.get(self._actors.async_run_method_batch("append", experience=experiences))
        if args.ds.enable_sleep:
            ray.get(self._actors.async_run_method("reload_states"))
        fitting = self._actors.async_run_method("fit", kl_ctl=args.algo.kl.init_coef)
        status: Metrics = {}
        for of_rank in ray.get(fitting):
            status |= of_rank
        if args.ds.enable_sleep:
            ray.get(self._actors.async_run_method("offload_states"))
        return status

    def publish(self) -> None:
        """Send the weights to the engines, of which those that sleep keep their cache asleep.

        Raises RunError for an engine that is stuck, EngineDeadError for one that ended.
        """
        limit = self._args.swap_run.generation_timeout
        if self._args.vllm.enable_sleep:
            batch_vllm_engine_call(self._engines, "wake_up", tags=["weights"])
        sending = self._actors.async_run_method("broadcast_to_vllm")
        try:
            ray.get(sending, timeout=None if math.isinf(limit) else limit)
        except ray.exceptions.GetTimeoutError:
            raise RunError(
                "the rollout engines did not take new weights within --swap.generation_timeout "
                f"{limit:g} seconds: one is stuck. Start again with --ckpt.load_enable; give more "
                "time if they were still at work"
            ) from None
        except ray.exceptions.RayTaskError:
            time.sleep(NOTICE_SECONDS)
            ray.get([engine.check_health.remote() for engine in self._engines])
            raise

    def save(self, tag: str, states: States) -> None:
        """Write a checkpoint with the loop's states."""
        ray.get(self._actors.async_run_method("save_checkpoint", tag=tag, client_states=states))

    def restored_states(self) -> States:
        """The loop's states of the checkpoint that the policy has loaded; empty for none."""
        states: States = ray.get(self._actors.async_run_method("get_checkpoint_states"))[0]
        return states

    def _requests(
        self,
        micro_batches: Sequence[Experience],
        rollouts: Sequence[Rollout],
        objective: Objective,
    ) -> list[list[ScoreRequest]]:
        """What the objective wants to know of the responses of each micro-batch."""
        config = objective.config
        wanted = WantedSignals(
            objective.wanted_signals, self._branch, config.need_window, config.need_every
        )
        requests = []
        for batch in micro_batches:
            members = [
                wanted.request(row, rollouts[index]) for row, index in enumerate(batch.index)
            ]
            requests.append([request for request in members if request is not None])
        return requests

    def _read_answers(
        self,
        experiences: Sequence[Experience],
        rollouts: Sequence[Rollout],
        requests: Sequence[Sequence[ScoreRequest]],
        answers: Sequence[ScoredForward],
    ) -> list[Rollout]:
        """Give the rollouts what the policy said of them."""
        known = list(rollouts)
        for experience in experiences:
            for row, index in enumerate(experience.index):
                actions = rollouts[index].positions - 1
                logprobs = experience.action_log_probs[row, actions]
                known[index] = replace(known[index], logprobs=logprobs)
        for experience, asked, answer in zip(experiences, requests, answers, strict=False):
            for request, signals in zip(asked, answer.signals, strict=True):
                index = experience.index[request.row]
                known[index] = known[index].with_signals(**signals)
        total = sum(answer.seconds for answer in answers)
        self.scoring_seconds = total / policy_ranks(self._args)
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
