"""The reward function that OpenRLHF loads by path (`--reward.remote_url`) in its rollout actors.

OpenRLHF calls it in worker threads, one response at a time, and swallows exceptions: a missing reward loses the whole
batch silently. Nothing in here raises.
"""

from __future__ import annotations

from typing import Any

from openrlhf_swap.rewards import Grade, grade_answer
from openrlhf_swap.rewards.verifiers import MATH
from openrlhf_swap.rollouts.families import R1
from openrlhf_swap.rollouts.labels import Label
from openrlhf_swap.rollouts.rollout import GRADED_CORRECT


def reward_func(
    queries: list[str],
    prompts: list[str],
    labels: list[Any],
    end_of_thought: str = R1.end_of_thought,
    grader: str = MATH,
) -> dict[str, Any]:
    """Grade one response.

    Args:
        queries: prompt and response as one text.
        prompts: the prompt.
        labels: the reference answer, text or a number; or a `Label` with its row, as a text.
        end_of_thought: what closes a thought; the rollout actors get it from the trainer.
        grader: the verifier's name, likewise (`--swap.grader`).

    Returns:
        `rewards` and `scores` (between 0 and 1), and as metrics whether the response is correct, the grader's status
        and whether it was slow.
    """
    grade = _grade_response(queries[0], prompts[0], Label.of(labels[0]), end_of_thought, grader)
    logs = {f"swap/grader_{status}": float(grade.status == status) for status in ("no_answer", "timeout", "error")}
    logs |= {"swap/grader_slow": float(grade.slow), GRADED_CORRECT: float(grade.correct)}
    return {"rewards": grade.score, "scores": grade.score, "extra_logs": logs}


def _grade_response(query: str, prompt: str, label: Label, end_of_thought: str, grader: str) -> Grade:
    # A beginning-of-text token may stand before the prompt. The prompt itself is never graded: it may quote an answer.
    before = query.find(prompt)
    if before < 0 or not prompt or label.fault or not (label.answer or grader != MATH):
        return Grade(correct=False, status="error")
    response = query[before + len(prompt) :]
    if prompt.rstrip().endswith(end_of_thought.rstrip()):  # a thought that was closed for the model
        response = end_of_thought + response
    return grade_answer(
        response,
        label.answer,
        end_of_thought,
        verifier=grader,
        problem=label.problem,
        metadata=label.metadata,
    )
