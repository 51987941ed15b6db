r"""`multiple_choice`: the letter of an option that a response states.

It is read where every answer is read (`statements.py`). The box or the announcement may hold an
option's text instead, if the row has a column `options`. Standard library only.
"""

import re
from collections.abc import Sequence

from openrlhf_swap.rewards.forms import canonical
from openrlhf_swap.rewards.statements import LETTERS, OPTIONS, stated_answer
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

_LETTER = re.compile(
    r"(?i:(?:so|thus|hence|therefore),? )?(?i:option |choice )?([(\[]?)([A-Za-z])(?![A-Za-z'])([)\]]?)"
)
# "A" and "I" are words, too, so what follows a letter must end it or explain it.
_EXPLAINED = re.compile(
    r"\s*(?:\Z|[.:,;(\d$\\]|[-\u2013\u2014]|(?:because|since|as|for|which|is (?:the )?(?:correct|right|best))\b)"
)
# Whoever names two letters has not chosen.
_ANOTHER = re.compile(
    r"[\s.,:;/&()\[\]-]*(?:(?:or|and|maybe|option)\s+)*[(\[]?(?:[A-HJ-Z]|I(?=\W*\Z))[)\]]?(?![\w'])"
)
_INSTEAD = re.compile(r"(?i)\A(?:not|n't)\b.{1,40}?\b(?:it is|it's|but)\s+(?=.)")


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether the letter that a response states is the reference answer."""
    options = metadata.get(OPTIONS) or ()
    stated = stated_letter(response, options, bool(metadata.get(THOUGHT_CLOSED, True)))
    if stated is None:
        return NO_ANSWER
    return Verdict(float(stated == answer.strip().upper()), why=f"read {stated}", stated=stated)


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be one letter, of an option if those are known."""
    letter, options = answer.strip().upper(), metadata.get(OPTIONS) or ()
    if len(letter) != 1 or letter not in LETTERS:
        return "an answer that is not a letter"
    if options and LETTERS.index(letter) >= len(options):
        return "an answer that is no option's letter"
    return None


def stated_letter(text: str, options: Sequence[str] = (), closed: bool = True) -> str | None:
    """The letter that a text states as its answer, in upper case; None if there is none."""
    stated = stated_answer(text, closed)
    letter = _letter_of(stated, options) if stated else None
    if letter:
        return letter
    _, boxed, behind = text.rpartition(stated or "\0")
    announced = stated_answer(behind.partition("}")[2], closed) if boxed and "boxed" in text else ""
    if announced:
        return _letter_of(announced, options)
    first_line = text.strip().partition("\n\n")[0]
    is_alone = len(first_line) < 10 and closed
    return _letter_of(first_line, options) if is_alone else None


def _letter_of(stated: str, options: Sequence[str]) -> str | None:
    letter = find_letter(stated)
    if letter:
        return letter.upper()
    same = [
        name
        for name, option in zip(LETTERS, options, strict=False)
        if _plain(option) == _plain(stated)
    ]
    return same[0] if len(same) == 1 else None


def find_letter(text: str) -> str | None:
    """The letter with which a text begins; None if it begins otherwise or names another one."""
    plain = re.sub(r"\\text ?|[{}]", "", canonical(_INSTEAD.sub("", text))).strip()
    letter = _LETTER.match(plain)
    if letter is None:
        return None
    rest = plain[letter.end() :]
    is_bracketed = bool(letter[1] or letter[3])
    if letter[2].islower() and not is_bracketed and rest.strip(". "):
        return None
    is_ended = is_bracketed or _EXPLAINED.match(rest)
    return letter[2] if is_ended and not _ANOTHER.match(rest) else None


def _plain(text: str) -> str:
    return re.sub(r"\\text|[{}\s]", "", canonical(text)).lower()


verify.find_fault = find_fault  # type: ignore[attr-defined]
