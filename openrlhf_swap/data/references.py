"""Reference answers as the chosen grader takes them: math-verify's are cleaned and parsed, others stay as they are."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from openrlhf_swap.errors import ConfigError, DataError
from openrlhf_swap.rewards import Grader
from openrlhf_swap.rewards.answers import as_text
from openrlhf_swap.rewards.golds import UNPARSABLE_ANSWER, fault_of, gradable, normal_answer
from openrlhf_swap.rewards.verifiers import FLAG, MATH, Reference, find_verifier

TRIED = 3  # tasks that a verifier is called with before a run starts


def read_task(row: Mapping[str, Any], problem_key: str, answer_key: str, grader: str) -> Reference:
    """The reference answer in a row of a data set; for other graders than math-verify with its other columns.

    The answer may be a label: `prompts.jsonl` of a run is a data set, too.

    Raises:
        DataError: for an answer that begins as a label and is none.
    """
    given = row[answer_key]
    try:
        label = Reference.parse(given)
    except ValueError as error:
        raise DataError(f"the answer begins as a label and cannot be read ({error})") from None
    answer = answer_of(label.answer if isinstance(given, str) else given, grader)
    if grader == MATH:
        return Reference(answer)
    rest = {name: value for name, value in row.items() if name not in (problem_key, answer_key)}
    return Reference(answer, label.problem or problem_text(row[problem_key]), {**rest, **label.metadata})


def labelled(row: Mapping[str, Any], task: Reference, problem_key: str, answer_key: str) -> dict[str, Any]:
    """The row as OpenRLHF reads it: what the grader may look at travels in the answer column."""
    source = {"datasource": row["datasource"]} if "datasource" in row else {}
    return {problem_key: row[problem_key], answer_key: task.label(), **source}


def problem_text(problem: object) -> str:
    """A problem as one text: of a chat, the user's messages."""
    if not isinstance(problem, list):
        return str(problem)
    messages = [message for message in problem if isinstance(message, dict) and message.get("role") == "user"]
    return "\n".join(str(message.get("content", "")) for message in messages)


def answer_of(value: object, grader: str) -> str:
    """An answer as a text: for math-verify in its normal form, otherwise as it stands, or as JSON."""
    if grader == MATH:
        return normal_answer(value)
    return json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, list | dict) else as_text(value)


def answer_is_text(grader: str) -> bool:
    """Whether the grader's reference answers are texts that a response could state."""
    return grader == MATH or find_verifier(grader).answer_is_text


def faults_of(tasks: Sequence[Reference], grader: str, label: str) -> list[str | None]:
    """What is wrong with each reference answer, worded to follow "dropped with"; None if nothing is.

    `label` names the command in the progress bar.
    """
    answers = [task.answer for task in tasks]
    if grader != MATH:
        find_fault = find_verifier(grader).find_fault
        return [find_fault(task.answer, task.metadata) for task in tasks]
    faults = [fault_of(answer) for answer in answers]
    usable = gradable((answer for answer, fault in zip(answers, faults, strict=True) if fault is None), label)
    return [
        fault or (None if answer in usable else UNPARSABLE_ANSWER)
        for answer, fault in zip(answers, faults, strict=True)
    ]


def try_grader(grader: str, tasks: Sequence[Reference], flag: str = FLAG) -> None:
    """Grade empty responses to the first tasks: a function that fails at once is refused before anything starts.

    Raises:
        ConfigError: with what the function raised.
    """
    if grader == MATH:
        return
    one = Grader(processes=1, verifier=grader)
    grades = one.grade_many([("", task) for task in tasks[:TRIED]])
    one.close()
    for number, grade in enumerate(grades, 1):
        if grade.status in ("error", "timeout"):
            reason = grade.why or grade.status
            raise ConfigError(f"{flag} is {grader}, which fails on an empty response to row {number}: {reason}")
