r"""`multiple_choice`: the letter of an option that a response states.

It is read where every answer is read (`statements.py`). The box or the announcement may hold an
option's text instead, if the row has a column `options`.
"""

import re
from collections.abc import Sequence

from openrlhf_swap.rewards.forms import PATTERNS, canonical
from openrlhf_swap.rewards.references import Metadata
from openrlhf_swap.rewards.statements import LETTERS, OPTIONS, stated_answer
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Verdict


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether the letter that a response states is the reference answer."""
    options = metadata.get(OPTIONS) or ()
    stated = stated_letter(response, options, metadata[THOUGHT_CLOSED])
    if stated is None:
        return NO_ANSWER
    is_same = stated == answer.strip().upper()
    return Verdict(float(is_same), why=f"read {stated}", stated=stated)


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be one letter, of an option if those are known."""
    options = metadata.get(OPTIONS) or LETTERS
    letter = answer.strip().upper()
    if len(letter) != 1 or letter not in LETTERS:
        return "an answer that is not a letter"
    if letter not in LETTERS[: len(options)]:
        return "an answer that is no option's letter"
    return None


def stated_letter(text: str, options: Sequence[str] = (), closed: bool = True) -> str | None:
    """The letter that a text states as its answer, in upper case; None if there is none.

    The stated answer may be a letter or an option's text. If it is neither, a second place is
    looked at: what is stated behind the last box, or without a box the paragraph at the beginning,
    where a letter may stand above its explanation.
    """
    stated = stated_answer(text, closed) or ""
    box, _, behind = text.rpartition(stated + "}")
    second = text.strip().partition("\n\n")[0]
    if "boxed" in box:
        second = stated_answer(behind, closed) or ""
    return _letter_of(stated, options) or _letter_of(second, options)


def _letter_of(stated: str, options: Sequence[str]) -> str | None:
    letter = find_letter(stated)
    if letter:
        return letter
    texts = [_written(option) for option in options]
    text = _written(stated)
    return LETTERS[texts.index(text)] if texts.count(text) == 1 else None


def find_letter(text: str) -> str | None:
    """The letter with which a text begins; None if it begins otherwise or names another one."""
    choice = PATTERNS.choice.match(_without_braces(text))
    return choice["letter"].upper() if choice else None


def _written(text: str) -> str:
    return _without_braces(text).replace(" ", "").lower()


def _without_braces(text: str) -> str:
    return re.sub(r"\\text ?|\\?[{}]", "", canonical(text)).strip()


verify.find_fault = find_fault  # type: ignore[attr-defined]
