r"""`multiple_choice`: the reference answer is a letter, and so is what the response states.

A letter is read from the last `\boxed{}`, from the last "Answer: C" or "the answer is (C)", or from a response that is
nothing but a letter. A box may hold an option's text instead, if the row has a column `options`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from openrlhf_swap.rewards.statements import (
    brace_boxes,
    final_statement,
    is_torn,
    last_announcement,
    last_boxes,
    remove_empty_boxes,
)
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPTIONS = "options"  # the column with the options' texts, in order
_WRAPPED = re.compile(
    r"\\(?:text|textbf|textrm|textit|textnormal|mathrm|mathbf|mathsf|mbox|operatorname|boldsymbol|bm)\s*"
    r"\{((?:[^{}]|\{[^{}]*\})*)\}"
)
# "A is wrong. So B.", at the end: what is left is all that a person would say.
_CONCLUSION = re.compile(
    r"(?:\A|[.!?\n])[\s*_]*(?:so|thus|hence|therefore)\b[,:]?\s+([^\n]{1,20})\s*\Z", re.IGNORECASE
)
# "A" and "I" are words, too, so what follows a letter must end it or explain it.
_LETTER = re.compile(
    r"(?:[\s*_$`\"']|\\[(\[])*(?:(?:option|choice|la)\s+)?"
    r"(?:\(([A-Za-z])\)|\[([A-Za-z])\]|([A-Za-z])\)|((?-i:[A-Z]))(?=[.:,;](?:\s|$)|\s*(?:\u2013|\u2014|-[-\s])"
    r"|\s+(?:\((?![A-Za-z]\)|or\b|maybe\b)|(?:because|since|as|for|which|is\s+(?:the\s+)?(?:correct|right|best))\b))"
    r"|([A-Za-z])(?=(?:[.:](?:\s|$)|[\s*_$`\"']|\\[)\]])*$))",
    re.IGNORECASE,
)
_ANOTHER = re.compile(  # "or B" after a letter: whoever names two has not chosen
    r"(?:[\s*_$.)]|\\[)\]])*(?:(?:[/&,;-]|\b(?:or|and)\b)(?:[\s*_$(]|\\[(\[])*"
    r"(?:(?:or|and|maybe|perhaps|possibly|option)\s+)*(?:\([A-Za-z]\)|[A-HJ-Z](?![\w'\u2019]))"
    r"|\([A-Za-z]\)|[A-Z][.)]?\s*\Z)"
)


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether the stated letter is the reference answer's."""
    response = brace_boxes(response)
    text = response if metadata.get(THOUGHT_CLOSED, True) else final_statement(response)
    stated = None if text is None else stated_letter(text, metadata.get(OPTIONS) or ())
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


def stated_letter(text: str, options: Sequence[str] = ()) -> str | None:
    """The letter that a text states as its answer, in upper case; None if there is none."""
    boxed = None if is_torn(text) else last_boxes(remove_empty_boxes(text))
    letter = find_letter(boxed) or _letter_of_option(boxed, options) if boxed else None
    if letter is None and (place := last_announcement(text if boxed is None else text.rpartition(boxed)[2])):
        letter = find_letter(place[1] or "")
    elif letter is None and (concluded := _CONCLUSION.search(text)):
        letter = find_letter(concluded[1])
    elif letter is None and "\n" not in text.strip():
        letter = find_letter(text)
    return letter and letter.upper()


def find_letter(text: str) -> str | None:
    """The letter with which a text begins, as it is written; None if it begins otherwise or names another one."""
    plain = unicodedata.normalize("NFKC", unwrap_text(text))
    letter = _LETTER.match(plain)
    return None if letter is None or _ANOTHER.match(plain, letter.end()) else letter[letter.lastindex or 0]


def _letter_of_option(text: str, options: Sequence[str]) -> str | None:
    same = [letter for letter, option in zip(LETTERS, options, strict=False) if _plain(option) == _plain(text)]
    return same[0] if len(same) == 1 else None


def _plain(text: str) -> str:
    return "".join(unwrap_text(text).replace("$", "").split()).lower()


def unwrap_text(text: str) -> str:
    return _WRAPPED.sub(r"\1", text)


verify.find_fault = find_fault  # type: ignore[attr-defined]
