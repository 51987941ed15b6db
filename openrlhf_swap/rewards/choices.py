r"""`multiple_choice`: the letter of an option that a response states.

It is read where every answer is read (`statements.py`). The box or the announcement may hold an
option's text instead, if the row has a column `options`.
"""

import re
from collections.abc import Sequence

from openrlhf_swap.rewards.forms import canonical
from openrlhf_swap.rewards.statements import LETTERS, OPTIONS, stated_answer
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

_LETTER = re.compile(
    r"(?i:(?:so|thus|hence|therefore),? )?(?i:option |choice )?([(\[]?)([A-Za-z])(?![\w'])([)\]]?)"
)
# "A" and "I" are words, too, so what follows a letter must end it or explain it.
_EXPLAINED = re.compile(
    r"\s*(?:\Z|[-.:,;=(\d$\\\u2013\u2014]"
    r"|(?:because|since|as|for|which|is (?:the )?(?:correct|right|best))\b)"
)
_ANOTHER = re.compile(  # whoever names two letters has not chosen
    r"[\s.,:;=/&()\[\]-]*(?:(?:or|and|maybe|option)\s+)*[(\[]?(?:[A-HJ-Z]|I(?=\W*\Z))[)\]]?(?![\w'])"
)


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether the letter that a response states is the reference answer."""
    options = metadata.get(OPTIONS) or ()
    stated = stated_letter(response, options, bool(metadata.get(THOUGHT_CLOSED, True)))
    if stated is None:
        return NO_ANSWER
    return Verdict(float(stated == answer.strip().upper()), why=f"read {stated}", stated=stated)


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be one letter, of an option if those are known."""
    letter = answer.strip().upper()
    options = metadata.get(OPTIONS) or LETTERS
    if len(letter) != 1 or letter not in LETTERS:
        return "an answer that is not a letter"
    if LETTERS.index(letter) >= len(options):
        return "an answer that is no option's letter"
    return None


def stated_letter(text: str, options: Sequence[str] = (), closed: bool = True) -> str | None:
    """The letter that a text states as its answer, in upper case; None if there is none.

    Behind a box that holds neither a letter nor an option an announcement counts, and a letter that
    stands alone above its explanation.
    """
    stated = stated_answer(text, closed) or ""
    box, _, behind = text.rpartition(stated + "}")
    readings = [stated]
    if "boxed" in box:
        readings.append(stated_answer(behind, closed) or "")
    elif closed:
        readings.append(text.strip().partition("\n\n")[0])
    letters = [_letter_of(reading, options) for reading in readings]
    return next(filter(None, letters), None)


def _letter_of(stated: str, options: Sequence[str]) -> str | None:
    letter = find_letter(stated)
    same = [name for name, text in zip(LETTERS, options, strict=False) if _same(text, stated)]
    if letter or len(same) != 1:
        return letter and letter.upper()
    return same[0]


def find_letter(text: str) -> str | None:
    """The letter with which a text begins; None if it begins otherwise or names another one."""
    plain = _without_braces(text)
    letter = _LETTER.match(plain)
    if letter is None:
        return None
    rest = plain[letter.end() :]
    is_bracketed = bool(letter[1] or letter[3])
    is_word = letter[2].islower() and rest.strip(". ")
    is_ended = is_bracketed or (not is_word and _EXPLAINED.match(rest))
    return letter[2] if is_ended and not _ANOTHER.match(rest) else None


def _without_braces(text: str) -> str:
    return re.sub(r"\\text ?|\\?[{}]", "", canonical(text)).strip()


def _same(option: str, stated: str) -> bool:
    plain = [_without_braces(text).replace(" ", "").lower() for text in (option, stated)]
    return plain[0] == plain[1]


verify.find_fault = find_fault  # type: ignore[attr-defined]
