"""The reward function that OpenRLHF loads by path (`--reward.remote_url`) in its rollout actors.

OpenRLHF calls it in worker threads, one response at a time, and swallows exceptions: a missing
reward loses the whole batch silently. Nothing in here raises.
"""

from contextlib import suppress
from typing import Any

from openrlhf_swap.rewards.graded_text import END_OF_THOUGHT, text_to_grade
from openrlhf_swap.rewards.grader import Grade, grade_answer
from openrlhf_swap.rewards.references import Reference
from openrlhf_swap.rewards.verifiers import GRADED_CORRECT, MATH, NO_GRADER, UNGRADED


def reward_func(
    queries: list[str],
    prompts: list[str],
    labels: list[Any],
    end_of_thought: str = END_OF_THOUGHT,
    grader: str = MATH,
) -> dict[str, Any]:
    """Grade one response (in `queries`, after its prompt) by its label, the reference answer.

    Returns `rewards` and `scores`, between 0 and 1, and as metrics whether it is correct, the
    grader's status, whether this was slow, and whether nothing was judged. What closes a thought
    and the verifier's name come from the trainer.
    """
    prompt = prompts[0]
    grade = Grade(False, "error")
    with suppress(ValueError):  # an empty prompt, or a label that cannot be read
        # A beginning-of-text token may stand before the prompt. The prompt itself is never graded:
        # it may quote an answer.
        _, prompt_again, response = queries[0].partition(prompt)
        if prompt_again:
            reference = Reference.parse(labels[0])
            text = text_to_grade(prompt, response, end_of_thought)
            grade = grade_answer(text, reference, end_of_thought, grader)
    logs = {
        f"swap/grader_{status}": float(grade.status == status)
        for status in ("no_answer", "timeout", "error")
    }
    logs |= {"swap/grader_slow": float(grade.slow), GRADED_CORRECT: float(grade.correct)}
    if grader == NO_GRADER:
        logs[UNGRADED] = 1.0
    return {"rewards": grade.score, "scores": grade.score, "extra_logs": logs}
