"""How the policy is taught to think in too many sentences, and labels of each sentence.

A thought has one sentence per line. A sentence is

* *essential*: the first to state an operation of the problem's solution;
* *useful*: a later one that states it with another result, which mends a slip;
* *redundant*: any other sentence of the grammar: re-checks that agree, restarts, doubts,
announcements;
* *other*: outside the grammar, or an operation that the solution does not have. The generator
  writes none; a trained policy may.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from studies.smollm2.operations import Operation, Problem

OPEN = "<think>\n"
END_OF_THOUGHT = "</think>"  # taught here: the model's chat template has no marks
CLOSE = END_OF_THOUGHT + "\n\nThe answer is \\boxed{"
END_OF_TURN = "<|im_end|>"
END = "}." + END_OF_TURN
LABELS = ("essential", "useful", "redundant", "other")
STEP_TOKENS = 4  # M
PATIENCE = 8.0  # how many times M may pass without a newline: 94% of sentences are then a step

# How much the thoughts overthink (how often an operation is checked, drawn uniformly; then
# probabilities), and how often a result is written down wrong; a slip is always mended at once.
RECHECKS = (0, 0, 0, 1, 1, 2)
DOUBT = 0.2
RESTART = 0.1
VERIFY = 0.35
SLIP = 0.08

FORMS = {
    "+": ("{a} + {b} = {c}", "{a} plus {b} is {c}", "adding {a} and {b} gives {c}"),
    "-": ("{a} - {b} = {c}", "{a} minus {b} is {c}", "taking {b} from {a} leaves {c}"),
    "*": ("{a} * {b} = {c}", "{a} times {b} is {c}", "multiplying {a} by {b} gives {c}"),
    "/": ("{a} / {b} = {c}", "{a} divided by {b} is {c}", "dividing {a} by {b} gives {c}"),
}
FIRST = ("First, ", "To start, ", "")
NEXT = ("Then ", "Next, ", "Now ", "")
CHECKS = ("Wait, let me check: ", "Let me double-check: ", "Hmm, once more: ", "Is that right? ")
AGREES = ("", ", as before", ", so that was right")
MENDS = ", not {wrong}"
OPENINGS = (
    "Okay, let me work this out step by step.",
    "Alright, one thing after the other.",
    "Let me think.",
)
DOUBTS = (
    "Hmm, I am not sure about that.",
    "Let me be careful here.",
    "That looks a bit odd.",
    "So far so good.",
)
RESTARTS = ("Let me start over.", "Maybe I should do it again from the beginning.")
VERIFICATIONS = ("Let me verify all of it.", "Before I answer, I will go through it again.")
ENDINGS = ("So the answer is {n}.", "So it comes out as {n}.", "That makes {n}.")

_NOTE = r"(?:one [a-z ]+ has \d+ legs, so )?"


def _one_of(texts: Sequence[str]) -> str:
    return "(?:" + "|".join(re.escape(text) for text in texts) + ")"


def _statement(form: str) -> re.Pattern[str]:
    """What matches a sentence that states an operation in this form."""
    numbers = re.escape(form)
    for name in "abc":
        numbers = numbers.replace(rf"\{{{name}\}}", rf"(?P<{name}>\d+)")
    opening = _one_of([*FIRST, *NEXT, *CHECKS])
    ending = rf"(?:{_one_of(AGREES)}|, not \d+)\."
    return re.compile(opening + _NOTE + numbers + ending, re.IGNORECASE)


_STATEMENTS: list[tuple[str, re.Pattern[str]]] = []
for _sign, _forms in FORMS.items():
    _STATEMENTS += [(_sign, _statement(form)) for form in _forms]
_FILLERS = re.compile(
    _one_of([*OPENINGS, *DOUBTS, *RESTARTS, *VERIFICATIONS])
    + "|"
    + _one_of(ENDINGS).replace(re.escape("{n}"), r"\d+")
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a thought and its label, one of LABELS."""

    text: str
    label: str


def thought_of(response: str) -> str:
    """A response's thought, without its tags."""
    return response.partition("</think>")[0].removeprefix(OPEN)


def classify(response: str, operations: Collection[Operation]) -> list[Sentence]:
    """Label the sentences of a response's thought by the operations that solve the problem.

    The response may be anybody's.
    """
    solution = {part.key for part in operations}
    stated: dict[tuple[str, int, int], str] = {}
    sentences = []
    for line in thought_of(response).splitlines():
        if not line.strip():
            continue
        label = "redundant" if _FILLERS.fullmatch(line) else "other"
        for sign, pattern in _STATEMENTS:
            found = pattern.fullmatch(line)
            if found:
                operation = Operation(int(found["a"]), sign, int(found["b"])).key
                label = "essential" if operation not in stated else "useful"
                if stated.get(operation) == found["c"]:
                    label = "redundant"
                if operation not in solution:
                    label = "other"
                stated[operation] = found["c"]
        sentences.append(Sentence(line, label))
    return sentences


def asked_after(sentences: Sequence[Sentence]) -> str:
    """A thought of these sentences and the text that makes the policy answer after it."""
    return OPEN + "".join(f"{sentence.text}\n" for sentence in sentences) + CLOSE


def response_of(sentences: Sequence[Sentence], answer: int) -> str:
    """A thought of these sentences followed by the answer, as the policy writes them."""
    return asked_after(sentences) + str(answer) + END


def shortest(problem: Problem) -> str:
    """The shortest correct response: every operation once, in few words."""
    operations = [
        Sentence(_state(part, FORMS[part.sign][0]), "essential") for part in problem.operations
    ]
    return response_of(operations, problem.answer)


def overthink(problem: Problem, rng: random.Random) -> list[Sentence]:
    """A thought as taught to the policy, each sentence labelled by its purpose."""
    thought = [_filler(OPENINGS, rng)] if rng.random() < 0.7 else []
    for number, part in enumerate(problem.operations):
        thought += _work_out(part, FIRST if number == 0 else NEXT, rng)
        for _ in range(rng.choice(RECHECKS)):
            thought.append(
                Sentence(_say(_bare(part), CHECKS, rng, rng.choice(AGREES)), "redundant")
            )
        if number and rng.random() < RESTART:
            thought += [
                _filler(RESTARTS, rng),
                *_again(problem.operations[: number + 1], (*FIRST, *NEXT), rng),
            ]
    if rng.random() < VERIFY:
        thought += [
            _filler(VERIFICATIONS, rng),
            *_again(map(_bare, problem.operations), CHECKS, rng),
        ]
    thought.append(Sentence(rng.choice(ENDINGS).format(n=problem.answer), "redundant"))
    return thought


def _work_out(part: Operation, leads: Sequence[str], rng: random.Random) -> Iterator[Sentence]:
    """State an operation for the first time: sometimes with a slip or a doubt.

    A slip is then mended.
    """
    wrong = part.result + rng.choice((-10, -2, -1, 1, 2, 10))
    slips = rng.random() < SLIP and wrong >= 0
    yield Sentence(_say(part, leads, rng, result=wrong if slips else None), "essential")
    if rng.random() < DOUBT:
        yield _filler(DOUBTS, rng)
    if slips:
        yield Sentence(_say(_bare(part), CHECKS, rng, MENDS.format(wrong=wrong)), "useful")


def _bare(part: Operation) -> Operation:
    return replace(part, note="")


def _again(
    operations: Iterable[Operation], leads: Sequence[str], rng: random.Random
) -> list[Sentence]:
    return [Sentence(_say(part, leads, rng), "redundant") for part in operations]


def _filler(texts: Sequence[str], rng: random.Random) -> Sentence:
    return Sentence(rng.choice(texts), "redundant")


def _say(
    part: Operation,
    leads: Sequence[str],
    rng: random.Random,
    tail: str = "",
    result: int | None = None,
) -> str:
    return _state(part, rng.choice(FORMS[part.sign]), rng.choice(leads), tail, result)


def _state(
    part: Operation, form: str, lead: str = "", tail: str = "", result: int | None = None
) -> str:
    """A sentence that states an operation, with its own result or a given one."""
    stated = form.format(a=part.left, b=part.right, c=part.result if result is None else result)
    text = lead + (f"{part.note}, so " if part.note else "") + stated + tail + "."
    return text[0].upper() + text[1:]
