"""Verifiers: functions that judge a response, by the name that `--swap.grader` gives them.

A verifier is a function of problem, answer, response and metadata that returns a Verdict, a bool or
a number between 0 and 1. It runs in a grading process, where it may hang, crash or print as it
likes.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

from openrlhf_swap.errors import ConfigError
from openrlhf_swap.packages import import_named
from openrlhf_swap.rewards.answers import normal_answer
from openrlhf_swap.rewards.references import Metadata

GRADER_FLAG = "--swap.grader"
MATH = "math"
REGEX = "regex:"
NO_GRADER = "none"
BUILT_IN = {
    MATH: "openrlhf_swap.rewards.mathematics:verify",
    "multiple_choice": "openrlhf_swap.rewards.choices:verify",
    NO_GRADER: "openrlhf_swap.rewards.verifiers:unjudged",
}
NOT_JUDGED = "not judged"  # why a verdict of the grader "none" says nothing
# The verdict, among what the reward function logs of a response.
GRADED_CORRECT = "swap/graded_correct"
UNGRADED = "swap/ungraded"  # a metric that says that nothing was judged
# In the metadata: whether the response is what follows a closed thought.
THOUGHT_CLOSED = "thought_closed"


@dataclass(frozen=True)
class Verdict:
    """A verifier's judgement of a response; raises ValueError for a score out of range.

    Attributes:
        score: the reward, between 0 and 1.
        correct: for accuracy, the target length and the process term; by default whether the score
            is 1.
        why: a reason for people; `eval run` and `score` write it.
        stated: the answer that was read, which the majority vote counts.
        answered: False if the response states no answer at all.
    """

    score: float
    correct: bool | None = None
    why: str = ""
    stated: str | None = None
    answered: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.score <= 1:
            raise ValueError(f"the score is {self.score!r}; a verifier returns one between 0 and 1")
        correct = self.score == 1 if self.correct is None else self.correct
        object.__setattr__(self, "correct", bool(correct and self.answered))


NO_ANSWER = Verdict(0.0, answered=False)
Verify = Callable[[str, str, str, Metadata], "Verdict | bool | float"]


class Unjudged:
    """A verifier that judges nothing, for objectives that learn from no verdict, such as crisp."""

    answer_is_text = False

    def __call__(self, problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
        return Verdict(0.0, why=NOT_JUDGED)


unjudged = Unjudged()


@dataclass(frozen=True)
class Verifier:
    """A function that judges responses.

    Attributes:
        answer_is_text: whether a response could state the reference answer, so that its probability
            says how far the reasoning has come.
        find_fault: what is wrong with a reference answer, worded to follow "dropped with".
    """

    name: str
    verify: Verify
    answer_is_text: bool
    find_fault: Callable[[str, Metadata], str | None]

    def judge(self, problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
        """The verdict on a response; TypeError or ValueError if the function returns none."""
        verdict = self.verify(problem, answer, response, metadata)
        if isinstance(verdict, Verdict):
            return verdict
        if isinstance(verdict, int | float):
            return Verdict(float(verdict))
        raise TypeError(f"{self.name} returned {verdict!r}; return a Verdict, a bool or a number")


def find_verifier(name: str) -> Verifier:
    """The verifier of a name: a built-in, `regex:PATTERN`, or a function as `module:function`.

    Raises a ConfigError for other names. A function may have attributes `answer_is_text` (default
    True) and `find_fault`.
    """
    if name.startswith(REGEX):
        function: Any = _match_last(name.removeprefix(REGEX))
    elif name in BUILT_IN or ":" in name:
        function = import_named(BUILT_IN.get(name, name), GRADER_FLAG)
    else:
        known = f"{', '.join(BUILT_IN)}, {REGEX}PATTERN, or a function of your own: module:function"
        raise ConfigError(f"{GRADER_FLAG} is {name!r}; use one of {known}")
    try:
        signature(function).bind("problem", "answer", "response", {})
    except TypeError:
        wanted = "(problem, answer, response, metadata)"
        fault = f"which is not a function of {wanted}"
        raise ConfigError(f"{GRADER_FLAG} is {name!r}, {fault}") from None
    except ValueError:
        pass  # some functions in C do not say what they take
    is_text = getattr(function, "answer_is_text", True)

    def find_empty(answer: str, metadata: Metadata) -> str | None:
        return None if answer.strip() or not is_text else "an empty answer"

    return Verifier(name, function, is_text, getattr(function, "find_fault", find_empty))


def _match_last(pattern: str) -> Verify:
    """A verifier by which the last match of a pattern must be the answer.

    Of a pattern with groups the first group is compared. Both sides are in normal form.
    """
    given = f"{GRADER_FLAG} is '{REGEX}{pattern}'"
    if not pattern:
        raise ConfigError(f"{given}; put the pattern after it, such as '{REGEX}Answer: (.+)'")
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"{given}, which is not a regular expression: {error}") from None

    def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
        group = min(expression.groups, 1)
        matches = [match[group] for match in expression.finditer(response)]
        if not matches or matches[-1] is None:
            return NO_ANSWER
        stated = matches[-1].strip()
        return Verdict(float(normal_answer(stated) == normal_answer(answer)), stated=stated)

    return verify
