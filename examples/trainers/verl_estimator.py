"""SWAP in verl: an advantage estimator that reads a trace from the rewards of its tokens.

verl computes advantages from `token_level_rewards`, the response mask and the prompt ids. So the
trace travels in the rewards: correctness on a response's last token, and l_k - l_{k-1} on the last
token of step k. SWAP needs no more of the scores.

Name this module in VERL_USE_EXTERNAL_MODULES. A reward manager of yours holds a `Scorer` with a
frozen copy of the initial policy, and writes `marked_rewards`. Leave `use_kl_in_reward` off;
`critic/rewards` mixes correctness and gains.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from verl.trainer.ppo.core_algos import register_adv_est

from openrlhf_swap import StepTrace, SwapConfig, swap_advantages

CONFIG = SwapConfig()
NO_GAIN = 1e-30  # in place of 0, which would hide where a step ends


def marked_rewards(trace: StepTrace, width: int) -> Tensor:
    """What a reward manager writes into its row of the (B, T) rewards."""
    rewards = torch.zeros(width)
    changes = pairwise(trace.answer_logprobs)  # none of a wrong response
    for end, (before, after) in zip(trace.step_ends, changes, strict=False):
        rewards[end] = (after - before) or NO_GAIN
    rewards[trace.length - 1] = float(trace.correct)  # the end token: no step ends there
    return rewards


def trace_of(rewards: Tensor, length: int) -> StepTrace:
    """The inverse; l_0 is lost, but nothing depends on it."""
    ends = rewards[: length - 1].nonzero().flatten()
    logprobs = torch.cat([torch.zeros(1), rewards[ends].cumsum(0)])
    return StepTrace(length, bool(rewards[length - 1] > 0), logprobs.tolist(), ends.tolist())


@register_adv_est("swap")
def swap_estimator(
    token_level_rewards: Tensor, response_mask: Tensor, index: Sequence[Any], **_: Any
) -> tuple[Tensor, Tensor]:
    """Selected with algorithm.adv_estimator=swap."""
    advantages = torch.zeros_like(token_level_rewards)
    lengths = response_mask.sum(-1).tolist()
    for prompt in set(index):
        rows = [row for row, uid in enumerate(index) if uid == prompt]
        traces = [trace_of(token_level_rewards[row].double().cpu(), lengths[row]) for row in rows]
        for row, values in zip(rows, swap_advantages(traces, CONFIG), strict=True):
            advantages[row, : lengths[row]] = values.to(advantages)
    return advantages, advantages
