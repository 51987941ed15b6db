"""OpenRLHF's two forms of a response: what its engine returns, and the row of a batch. All else reads a `Rollout`."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from typing import Any

from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator

from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT, Reference
from openrlhf_swap.rollouts.rollout import Rollout

FAILED = "swap/reward_function_failed"  # in `extra_logs`: why the reward function gave no reward


@dataclass
class Sample(Experience):
    """One response as OpenRLHF batches it, with the rollout that it was made from.

    Micro-batches have no `rollout`; `Experience.index` finds theirs in the list of all samples.
    """

    rollout: Rollout = field(kw_only=True)


def read_response(response: Mapping[str, Any], start: int | None = None, flag: str = "--reward.remote_url") -> Rollout:
    """The rollout of a response that OpenRLHF's engine returned.

    `start` is where it begins in `observation_tokens`, if before the tokens that were generated last. Raises
    DataError, which names the flag of what gave the reward, when there is none, or when it, the score or a number for
    the metrics is not finite.
    """
    ids, ranges = response["observation_tokens"], [tuple(bounds) for bounds in response["action_ranges"]]
    if not ranges:
        raise DataError(
            "the agent of --train.agent_func_path generated nothing for a prompt: its first observation fills "
            "--data.max_len; use a larger one"
        )
    start = ranges[0][0] if start is None else start
    ranges[0] = (start, ranges[0][1])
    generated = [ids[begin:end] for begin, end in ranges]
    places = list(accumulate(map(len, generated)))
    between = [ids[end:begin] for (_, end), (begin, _) in pairwise(ranges)]
    logs = {name: _unlisted(value) for name, value in (response.get("extra_logs") or {}).items()}
    reward, scores, verdict = _unlisted(response["reward"]), _unlisted(response["scores"]), logs.get(GRADED_CORRECT)
    if reward is None:
        reason = logs.get(FAILED, "its own error is in the log above")
        raise DataError(f"the reward function of {flag} gave no reward for a response: {reason}")
    for name, value in {"the reward": reward, "the score": scores, **logs}.items():
        try:
            finite = value is None or math.isfinite(value)
        except (TypeError, ValueError, RuntimeError):
            finite = False
        if not finite:
            raise DataError(f"{flag} gave {value!r} as {name} of a response; it has to be one finite number")
    return Rollout(
        prompt=response["prompt"],
        answer=Reference.parse(response["label"]).answer,
        response_ids=list(chain.from_iterable(generated)),
        prompt_ids=ids[:start],
        reward=float(reward),  # of a tensor with one number, too
        truncated=bool(response.get("truncated", False)),
        graded_correct=None if verdict is None else verdict > 0,
        record={
            "label": response["label"],
            "scores": scores,
            "rollout_log_probs": response["rollout_log_probs"],
            "extra_logs": logs,
        },
        observations=list(zip(places, between, strict=False)),
    )


def _unlisted(value: Any) -> Any:
    """The number in a list of one, as a reward server gives it for its one query."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def make_sample(rollout: Rollout, context: int) -> Sample:
    """OpenRLHF's row of a response, which ends with the context; what an environment wrote is no action in it."""
    kept = int((rollout.positions < context).sum())
    inside = [(place, seen) for place, seen in rollout.observations if place < kept]
    rollout = replace(rollout, response_ids=rollout.response_ids[:kept], observations=inside)
    ids, bounds = rollout.row_ids, rollout.positions.tolist()
    starts = [0, *(place for place, _ in inside), kept]
    logprobs = rollout.record["rollout_log_probs"]
    response = {
        **rollout.record,
        "rollout_log_probs": logprobs if logprobs is None else logprobs[: len(ids)],
        "prompt": rollout.prompt,
        "observation_tokens": ids,
        "action_ranges": [(bounds[begin], bounds[end - 1] + 1) for begin, end in pairwise(starts) if begin < end],
        "reward": rollout.reward,
        "truncated": rollout.truncated,
    }
    row = SamplesGenerator._process_response_into_experience(None, response, max_len=context)
    return Sample(**vars(row), rollout=replace(rollout, record={}))
