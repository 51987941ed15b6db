"""The driver's requests to an engine, and the rollout of each response."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any

from vllm import SamplingParams

from openrlhf_swap.errors import DataError
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT
from openrlhf_swap.rollouts.rollout import Rollout

FAILED = "swap/reward_function_failed"  # in `extra_logs`: why the reward function gave no reward
TURN_REWARDS = "swap/turn_rewards"  # in `extra_logs`: the rewards of the turns so far
REWARD_FLAG = "--reward.remote_url"


@dataclass(frozen=True)
class EngineRequest:
    """A number of responses to one text.

    Attributes:
        prompt: the text, as the chat template renders it; with a forced beginning, if there is one.
        label: the row's reference answer, as the data set writes it.
        count: how many responses are wanted.
        sampling: vLLM's parameters, the limit of new tokens included.
        seed: what makes the responses reproducible, with the prompt and a response's number.
        prefix: a response that is continued; its tokens are not generated again.
    """

    prompt: str
    label: str
    count: int
    sampling: SamplingParams
    seed: str | None = None
    prefix: Rollout | None = None


def read_response(
    response: Mapping[str, Any], start: int | None = None, flag: str = REWARD_FLAG
) -> Rollout:
    """Make a rollout of the response that OpenRLHF's executor returned.

    `start` is the place in `observation_tokens` where the response begins, if it begins before the
    tokens that were generated last. Raises DataError, which names `flag`, when there is no reward,
    or when the reward, the score or a number for the metrics is not finite.
    """
    ids = response["observation_tokens"]
    ranges = list(response["action_ranges"])
    if not ranges:
        raise DataError(
            "the agent of --train.agent_func_path generated nothing for a prompt: its first "
            "observation fills --data.max_len; use a larger one"
        )
    start = ranges[0][0] if start is None else start
    ranges[0] = (start, ranges[0][1])
    turns = [ids[begin:end] for begin, end in ranges]
    observed = [ids[end:begin] for (_, end), (begin, _) in pairwise(ranges)]
    places = accumulate(map(len, turns))

    given = dict(response.get("extra_logs") or {})
    turn_rewards = given.pop(TURN_REWARDS, ())
    logs = {name: _unlisted(value) for name, value in given.items()}
    reward = _unlisted(response["reward"])
    score = _unlisted(response["scores"])
    if reward is None:
        reason = logs.get(FAILED, "its own error is in the log above")
        raise DataError(f"the reward function of {flag} gave no reward for a response: {reason}")
    for name, value in {"the reward": reward, "the score": score, **logs}.items():
        _check_finite(name, value, flag)
    verdict = logs.get(GRADED_CORRECT)
    return Rollout(
        prompt=response["prompt"],
        answer=Reference.parse(response["label"]).answer,
        response_ids=list(chain.from_iterable(turns)),
        prompt_ids=ids[:start],
        reward=float(reward),  # a tensor with one number becomes a number, too
        truncated=bool(response.get("truncated", False)),
        graded_correct=None if verdict is None else verdict > 0,
        record={
            "label": response["label"],
            "scores": score,
            "rollout_log_probs": response["rollout_log_probs"],
            "extra_logs": logs,
        },
        observations=list(zip(places, observed, strict=False)),
        turn_rewards=turn_rewards,
    )


def _unlisted(value: Any) -> Any:
    """Take the number out of a list of one, as a reward server gives it for its one query."""
    if isinstance(value, list) and len(value) == 1:
        return value[0]
    return value


def _check_finite(name: str, value: Any, flag: str) -> None:
    try:
        finite = value is None or math.isfinite(value)
    except (TypeError, ValueError, RuntimeError):
        finite = False
    if not finite:
        raise DataError(
            f"{flag} gave {value!r} as {name} of a response; it has to be one finite number"
        )
