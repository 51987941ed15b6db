r"""What a response states as its answer.

1. The last complete `\boxed{}` states it, and prose cannot deny it. Boxes side by side are one
   answer. A box that was begun later and cut off says that no answer was reached.
2. Without a box, the last announcement of `forms.yaml` states it, in one of its languages.
3. Without either, a response that is nothing but an answer states it.
4. After a closed thought only, the last line states it: by its one formula, or by what follows one
   of the verbs of `forms.yaml` directly ("gives 12 in total").

Anything else states no answer.
"""

import re
from typing import NamedTuple

from openrlhf_swap.rewards.forms import PATTERNS, TABLES, is_balanced

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPTIONS = "options"  # the column with the options' texts, in order

_ANNOUNCED = re.compile(rf"(?im)(?:{'|'.join(TABLES['announcements'].values())})[\s*_`\"':\uff1a]*")
_MARKS = " *_`\"'\t"
_TAIL = 400  # characters of a last line in which a last sentence is looked for


class Announcement(NamedTuple):
    """Where an announcement of an answer begins in a text, and the answer that it says."""

    start: int
    said: str


class _Box(NamedTuple):
    """Where a box begins and ends, and its contents."""

    begin: int
    end: int
    inside: slice


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none."""
    boxes = _boxes(text)
    return text[boxes[-1].inside] if boxes else None


def _boxes(text: str) -> list[_Box]:
    r"""Every complete box, in the order in which they begin.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall
    the grading.
    """
    open_braces: list[re.Match[str]] = []
    boxes = []
    for brace in PATTERNS.braces.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces:
            opened = open_braces.pop()
            if len(opened[0]) > 1:
                inside = slice(opened.end(), brace.start())
                boxes.append(_Box(opened.start(), brace.end(), inside))
    return sorted(boxes)


def last_boxes(text: str) -> str | None:
    r"""The contents of the last box, and of those right before it: `\boxed{1}, \boxed{2}`."""
    joined: list[str] = []
    following = 0
    for box in reversed(_boxes(text)):
        if joined and not PATTERNS.between_boxes.fullmatch(text, box.end, following):
            break
        joined.insert(0, text[box.inside])
        following = box.begin
    return ", ".join(joined) or None


def stated_answer(text: str, closed: bool = True) -> str | None:
    """The answer that a response states by the rules of this module; None if it states none.

    `closed` says whether the text is what follows a closed thought.
    """
    plain = PATTERNS.bare_box.sub(r"\\boxed{\1}", text)
    plain = PATTERNS.empty_box.sub("", plain)
    if PATTERNS.begun_box.search(plain):
        return _boxed_answer(plain)
    start = 0 if closed else answer_start(plain)
    if start is not None:
        announced = last_announcement(plain[start:])
        if announced:
            return announced.said or None
    alone = _only_answer(text)
    if alone or not closed:
        return alone
    last_line = plain.rstrip().rpartition("\n")[2]
    return _answer_of_line(last_line)


def _boxed_answer(text: str) -> str | None:
    begun = list(PATTERNS.begun_box.finditer(text))
    start = begun[-1].start()
    inside = last_boxes(text)
    if inside is None or _boxes(text)[-1].begin < start:
        return None  # cut off
    has_statement = "$" in inside or _ANNOUNCED.search(inside)
    if has_statement and PATTERNS.prose.search(inside):
        return stated_answer(inside.replace("\\boxed", "")) or inside
    compared = PATTERNS.compared.search(text, start - 80, start)
    if compared:
        return f"{compared[1]} {inside}"
    return inside


def last_announcement(text: str) -> Announcement | None:
    """The last announcement of an answer in a text; None without one."""
    announced = [*_ANNOUNCED.finditer(text)]
    if not announced:
        return None
    last = announced[-1]
    said = last["before"] or _statement(text, last.end())
    return Announcement(last.start(), said.strip(_MARKS + ","))


def _statement(text: str, start: int) -> str:
    """What is said from a place on: a displayed formula, or all up to the end of the clause."""
    displayed = PATTERNS.displayed.match(text, start)
    if displayed:
        return displayed[displayed.lastindex or 0]
    said = PATTERNS.not_this.sub("", text[start:], count=1)
    clause = PATTERNS.end_of_clause.split(said, maxsplit=1)[0]
    said = clause.strip(_MARKS)
    if PATTERNS.prose.search(said):
        said = _answer_of_line(said) or said
    if not is_balanced(said):
        said = said.strip("}")
    return said.strip(_MARKS)


def _only_answer(text: str) -> str | None:
    alone = text.strip(_MARKS + "\n")
    if not PATTERNS.alone.fullmatch(alone):
        return None
    is_formula = bool(PATTERNS.one_formula.fullmatch(alone))
    prose = PATTERNS.prose.findall(alone)
    return alone if len(prose) <= is_formula else None


def _answer_of_line(line: str) -> str | None:
    if len(line) > _TAIL:  # a whole text without line breaks: its last sentence
        line = PATTERNS.sentence_end.split(line[-_TAIL:])[-1]
    alone = _only_answer(line)
    if alone or line.endswith("?"):
        return alone
    formulas = [*PATTERNS.formula.finditer(line)]
    start = 0
    for verb in PATTERNS.verb.finditer(line):
        start = verb.end()
    if len(formulas) == 1:
        formula = formulas[0]
        if start <= formula.end():
            return formula[formula.lastindex or 0]
    if start:
        return _statement(line, start) or None
    return None


def answer_start(text: str) -> int | None:
    r"""The place where a response that never closed its thought begins to state its answer.

    That is where the sentence begins that has the last box with contents. Without a box it is where
    the sentence of the last line begins that announces an answer, or the last line itself if a
    heading above announces one. Headings right above ("**Final Answer**") and lines without a word
    belong to the statement. Returns None if no answer is stated.
    """
    boxes = [*PATTERNS.begun_box.finditer(text)]
    place = len(text.rstrip().removesuffix("</answer>").rstrip())
    if boxes:
        place = boxes[-1].start()
    line = text.rfind("\n", 0, place) + 1
    above = _above_headings(text, line)
    if not boxes:
        announced = last_announcement(text[above:place])
        if announced is None or not announced.said:
            return None
        place = max(above + announced.start, line)
    start = above
    for sentence in PATTERNS.sentence_end.finditer(text, line, place):
        start = sentence.end()
    return len(text) - len(text[start:].lstrip())


def _above_headings(text: str, line: int) -> int:
    """Where the headings and the lines without a word right above the line at `line` begin."""
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        words = re.findall(r"\w+", text[above:line])
        if not PATTERNS.heading.fullmatch(" ".join(words)):
            break
        line = above
    return line
