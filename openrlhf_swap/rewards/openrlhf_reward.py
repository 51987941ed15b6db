"""The reward function that OpenRLHF loads by path (`--reward.remote_url`) in its rollout actors.

OpenRLHF calls it in worker threads, one response at a time, and swallows exceptions: a missing reward loses the whole
batch silently. Nothing in here raises.
"""

from __future__ import annotations

from typing import Any

from openrlhf_swap.rewards import Grade, grade_answer
from openrlhf_swap.rollouts.answers import as_text
from openrlhf_swap.rollouts.families import R1


def reward_func(
    queries: list[str], prompts: list[str], labels: list[Any], end_of_thought: str = R1.end_of_thought
) -> dict[str, Any]:
    """Grade one response.

    Args:
        queries: prompt and response as one text.
        prompts: the prompt.
        labels: the reference answer, text or a number.
        end_of_thought: what closes a thought; the rollout actors get it from the trainer.

    Returns:
        `rewards` and `scores` (1.0 or 0.0), and as metrics the grader's status and whether it was slow.
    """
    grade = _grade_response(queries[0], prompts[0], labels[0], end_of_thought)
    reward = float(grade.correct)
    logs = {f"swap/grader_{status}": float(grade.status == status) for status in ("no_answer", "timeout", "error")}
    return {"rewards": reward, "scores": reward, "extra_logs": {**logs, "swap/grader_slow": float(grade.slow)}}


def _grade_response(query: str, prompt: str, answer: object, end_of_thought: str) -> Grade:
    # A beginning-of-text token may stand before the prompt. The prompt itself is never graded: it may quote an answer.
    before = query.find(prompt)
    text = as_text(answer)  # rows of evaluation data come as they are: an answer may be a number
    if before < 0 or not prompt or not text:
        return Grade(correct=False, status="error")
    response = query[before + len(prompt) :]
    return grade_answer(response, text, end_of_thought)
