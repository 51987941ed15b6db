"""Rollouts as OpenRLHF's rows of a batch, and OpenRLHF's experience maker for them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import ray
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from torch import Tensor

from openrlhf_swap.errors import DataError
from openrlhf_swap.flags.placement import takes_turns
from openrlhf_swap.integration.driver.waiting import results
from openrlhf_swap.integration.policy.scorer import ScoredForward
from openrlhf_swap.rollouts.rollout import Rollout

PASS = "forward() of the policy"  # as errors call it


def fit_context(rollout: Rollout, context: int) -> Rollout:
    """Drop the tokens of a rollout that do not fit into the context, and what stands after them."""
    kept = int((rollout.positions < context).sum())
    inside = [(place, ids) for place, ids in rollout.observations if place < kept]
    return replace(
        rollout,
        response_ids=rollout.response_ids[:kept],
        truncated=rollout.truncated or kept < len(rollout.response_ids),
        observations=inside,
        turn_rewards=rollout.turn_rewards[: len(inside) + 1],
        closing=[place for place in rollout.closing if place < kept],
    )


def experience_row(rollout: Rollout, context: int) -> Experience:
    """Make OpenRLHF's row of one response, of T tokens in a context.

    What an environment wrote, or what closed a thought at its budget, is no action in the row.
    `sequences` and `attention_mask` are (1, T) int64, the latter with the number of each token's
    context from 1 on; `action_mask` (1, T - 1) int64 and `rollout_log_probs` (1, T - 1) float32
    begin with the prediction of the second token.
    """
    ids = rollout.row_ids
    is_action = torch.zeros(len(ids), dtype=torch.int64)
    is_action[rollout.positions] = 1
    is_action[rollout.positions[list(rollout.closing)]] = 0
    action_mask = is_action[1:].unsqueeze(0)
    # Summed up, the beginnings of contexts number them.
    begins = torch.zeros(1, len(ids), dtype=torch.int64)
    begins[0, rollout.context_starts] = 1
    logprobs = rollout.record["rollout_log_probs"]
    if logprobs is not None:
        logprobs = torch.tensor([logprobs[1 : len(ids)]])
    rewards = torch.tensor([rollout.reward])

    info = {"response_clip_ratio": torch.tensor([len(ids) >= context]), "reward": rewards}
    score = rollout.record["scores"]
    scores = None if score is None else torch.tensor([score])
    if scores is not None:
        info["score"] = scores
    for name, value in rollout.record.get("extra_logs", {}).items():
        info[name] = torch.tensor([float(value)])
    return Experience(
        sequences=torch.tensor([ids]),
        attention_mask=begins.cumsum(1),
        action_mask=action_mask,
        rollout_log_probs=logprobs,
        prompts=[rollout.prompt],
        labels=[rollout.record["label"]],
        rewards=rewards,
        scores=scores,
        response_length=action_mask.sum(1),
        truncated=torch.tensor([rollout.truncated]),
        total_length=torch.tensor([float(len(ids))]),
        info=info,
    )


def check_names(rollouts: Sequence[Rollout]) -> None:
    """Raise DataError for a metric that some responses lack: OpenRLHF cannot batch those."""
    logs = [rollout.record.get("extra_logs", {}) for rollout in rollouts]
    counts = Counter(chain.from_iterable(logs))
    for name, count in counts.items():
        lacking = len(rollouts) - count
        if lacking:
            raise DataError(
                f"the extra_logs of {lacking} of {len(rollouts)} responses lack {name!r}: return "
                "the same names in every turn, with 0 where there is nothing to count"
            )


class SwapExperienceMaker(RemoteExperienceMaker):
    """OpenRLHF's experience maker for one batch, which asks the policy for more.

    Attributes:
        requests: what is asked of each micro-batch, by the argument of the policy's forward.
        answers: the policy's answer for each micro-batch, after `make_experience`; empty if
            nothing was asked.
    """

    def __init__(self, *models: Any) -> None:
        super().__init__(*models)
        self.requests: dict[str, Any] = {}
        self.answers: list[ScoredForward] = []

    def _dispatch_forward(self, group: Any, sync_condition: bool, **batch: Any) -> list[Any]:
        """Overrides RemoteExperienceMaker: the policy also gets the requests.

        Models that take turns with a GPU's memory are waited for as `results` says, and free it;
        others keep it. An update that takes its own log-probabilities (`--swap.reuse_logprobs`)
        gets zeros in their place.
        """
        if group is self.actor_model_group:
            if self.args.swap_run.reuse_logprobs:
                zeros = [torch.zeros(mask.shape) for mask in batch["action_mask"]]
                return [ray.put(zeros)]
            batch |= self.requests
        refs = super()._dispatch_forward(group, False, **batch)
        if sync_condition and takes_turns(self.args):
            results(refs, self.args, PASS)
            results(group.async_run_method(method_name="empty_cache"), self.args, PASS)
        return refs

    def _flatten_results(self, refs: list[Any], duplicate_factor: int) -> list[Any]:
        """Overrides RemoteExperienceMaker: takes the log-probabilities out of the answers.

        It waits no longer than `results` does.
        """
        log_probs = []
        found = results(refs, self.args, PASS)
        for result in chain.from_iterable(found[::duplicate_factor]):
            if isinstance(result, ScoredForward):
                self.answers.append(result)
                result = result.action_log_probs
            log_probs.append(result)
        return log_probs

    def get_cumulative_returns(self, rewards: Tensor, action_mask: Tensor, gamma: float) -> Tensor:
        """Overrides RemoteExperienceMaker: the same bits for a gamma of 1.

        OpenRLHF's loop over tokens takes 0.05 s a response.
        """
        # NumPy adds one float32 after the other, as the loop does; torch.cumsum adds in float64.
        from_the_end = (action_mask * rewards).flip(-1).numpy()
        return torch.from_numpy(np.add.accumulate(from_the_end, axis=-1)).flip(-1)
