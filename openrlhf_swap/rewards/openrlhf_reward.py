"""The reward function that OpenRLHF loads by path (`--reward.remote_url`) in its rollout actors.

OpenRLHF calls it in worker threads, one response at a time, and swallows exceptions: a missing reward loses the whole
batch silently. Nothing in here raises.
"""

from __future__ import annotations

import re
from typing import Any

from openrlhf_swap.rewards import Grade, grade_answer
from openrlhf_swap.rollouts.answers import as_text

# OpenRLHF decodes the token that ended the response, too: `<|im_end|>`, R1's with its own bars, `</s>`, `<eos>`.
_END_TOKEN = re.compile(r"\s*(?:<([|\uff5c])[^<>|\uff5c\s]+\1>|</s>|<(?:eos|eot|end|end_of_turn)>)\s*\Z")


def reward_func(queries: list[str], prompts: list[str], labels: list[Any]) -> dict[str, Any]:
    """Grade one response.

    Args:
        queries: prompt and response as one text.
        prompts: the prompt.
        labels: the known answer, text or a number.

    Returns:
        `rewards` and `scores` (1.0 or 0.0), and the grader's status as metrics.
    """
    grade = _grade_response(queries[0], prompts[0], labels[0])
    reward = float(grade.correct)
    statuses = {f"swap/grader_{status}": float(grade.status == status) for status in ("no_answer", "timeout", "error")}
    return {"rewards": reward, "scores": reward, "extra_logs": statuses}


def _grade_response(query: str, prompt: str, answer: object) -> Grade:
    # A beginning-of-text token may stand before the prompt. The prompt itself is never graded: it may quote an answer.
    _, found, response = query.partition(prompt)
    text = as_text(answer)  # rows of evaluation data come as they are: an answer may be a number
    if not found or not text:
        return Grade(correct=False, status="error")
    return grade_answer(_END_TOKEN.sub("", response), text)
