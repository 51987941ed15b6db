"""`math`: whether the answer that a response states equals the reference answer."""

from openrlhf_swap.rewards.answers import (
    LONGEST_ANSWER,
    UNPARSABLE_ANSWER,
    normal_answer,
    strip_answer,
)
from openrlhf_swap.rewards.comparison import is_understood, same_answer
from openrlhf_swap.rewards.references import Metadata
from openrlhf_swap.rewards.statements import stated_answer
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Verdict


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether a response states the reference answer; ValueError if that is not understood.

    Nearly every text contains a number, so only a stated answer counts (`statements.py`).
    """
    gold = _gold(answer)
    stated = strip_answer(stated_answer(response, metadata[THOUGHT_CLOSED]) or "")
    is_same = bool(gold and stated) and same_answer(gold, stated)
    if not is_same and not is_understood(gold):
        raise ValueError("the reference answer cannot be parsed")
    if not stated:
        return NO_ANSWER
    return Verdict(float(is_same), stated=stated)


def _gold(answer: str) -> str:
    """The bare reference answer, which a whole solution states somewhere."""
    gold = strip_answer(normal_answer(answer))
    if len(gold) > LONGEST_ANSWER:
        gold = strip_answer(stated_answer(gold) or gold)
    return gold


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be words, or mathematics that is understood."""
    return None if is_understood(_gold(answer)) else UNPARSABLE_ANSWER


verify.find_fault = find_fault  # type: ignore[attr-defined]
