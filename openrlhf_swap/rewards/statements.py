r"""What a response states as its answer.

1. The last complete `\boxed{}` states it, and prose cannot deny it. Boxes side by side are one
   answer. A box that was begun later and cut off says that no answer was reached.
2. Without a box, the last announcement of `forms.yaml` states it, in English or Chinese.
3. Without either, a response that is nothing but an answer states it.
4. After a closed thought only: the one formula of the last line states it, or what follows a verb of `forms.yaml`
   there directly ("gives 12 in total").

Anything else states no answer."""

import re

from openrlhf_swap.rewards.forms import TABLES, is_balanced, words

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
OPTIONS = "options"  # the column with the options' texts, in order

# "B is the answer": the answer stands before it.
_ANNOUNCED_BEFORE = re.compile(
    r"(?i)(?<!\S)(?=[-\d$\\(\[*]|[A-Z](?![\w']))(\S{1,40}) is (?:correct\b|right\b|(?:the|our|my) (?:(?:final|correct|right|best) )*"
    r"(?:answer|option|choice)\b)"
)
_ANNOUNCED = re.compile(rf"(?im)(?:{'|'.join(TABLES['announcements'].values())})[\s*_`\"':：]*")
_VERB = re.compile(
    rf"(?:\b(?:{'|'.join(words('verbs'))})\b,?|['\u2019]s\b|[=:：是为有得共])[ *_`]*"
    r"(?=[-+$\\(\[{]*[\d.√]|[$\\(\[{]|[A-Z](?![\w']))",
    re.IGNORECASE,
)
_END = re.compile(
    r"\n|</|\[/|[.!](?=[\s*_`]|\Z|</)|[。！]|[,，] ?(?:not|since|because|which|as|so|but|it|we|there)\b"
    r"|\s(?:because|since|so that)\b"
)
_DENIED_FIRST = re.compile(r"not [^,.\n]{1,60}, ?(?:but|it is|it['\u2019]s) (?=\S)")
_DISPLAYED = re.compile(r"\s*(?:\$\$(.+?)\$\$|\\\[(.+?)\\\])", re.DOTALL)
_FORMULA = re.compile(r"\$\$?([^$\n]+)\$\$?|\\\(((?:(?!\\\)).)+)\\\)|\\\[((?:(?!\\\]).)+)\\\]")
_BOX = r"\\(?:boxed|fbox|framebox)"
_BRACES = re.compile(rf"{_BOX}\s*\{{|\{{|\}}")
_EMPTY_BOX = re.compile(rf"{_BOX}\s*\{{\s*(?:\.{{3}}|…|\\l?dots|\?)?\s*\}}")
_BARE_BOX = re.compile(rf"{_BOX}(?:\s*(\d[\d.,]*(?<!\D))|\s+([A-Za-z])(?![A-Za-z]))")
_BEGUN_BOX = re.compile(rf"{_BOX}\s*(?:\{{|\Z)")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$&]|\\[()\[\],;:\\]|\\q?quad|\\text\s*\{[^{}]*\}|\band\b|\bor\b)*"
)
_COMPARED_BOX = re.compile(r"\$([^$<>\n]{1,40}(?:<|>|\\(?:ne|neq|le|leq|ge|geq)\s))\s*\Z")
_TWO_WORDS = re.compile(r"(?<!\\)\b[A-Za-z]{2,}\s+[A-Za-z]{2,}\b|\b[A-Z][a-z]{2,}\s+\d")
_HEADING = re.compile(r"(?i)(?:(?:so|thus|hence) )?(?:(?:the|our|my) )?(?:final )?answer(?: is)?")
_SENTENCE_END = re.compile(r"[.!?]\s+")
_MARKS = " *_`\"'\t"
_LONGEST = 200  # characters of a response that may be nothing but an answer, and of a last line
# Tokens that families put around an answer, and at its end: `<|im_end|>`, `<turn|>`, `</s>`.
_MARK = r"<([|\uff5c])[^<>|\uff5c\s]+\1>"
_MARKS_BEFORE = re.compile(rf"(?:{_MARK}\s*)+")
_MARK_AFTER = re.compile(
    rf"(?:{_MARK}|<\w+\|>|<\|im_start\|>\w*|</s>|<(?:eos|eot|end|end_of_turn|seed:eos)>)\Z"
)
_LONGEST_MARK = 40  # characters


def text_after_thought(response: str, end_of_thought: str) -> str:
    """The text after the first end of the thought, less the special tokens around it.

    All of the response without an end of the thought.
    """
    _, closed, rest = response.partition(end_of_thought)
    visible = (rest if closed else response).strip()
    while True:
        mark = _MARK_AFTER.search(visible, max(0, len(visible) - _LONGEST_MARK))
        if mark is None:
            break
        visible = visible[: mark.start()].rstrip()
    before = _MARKS_BEFORE.match(visible)
    return visible[before.end() :] if before else visible


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none."""
    boxes = _boxes(text)
    return text[slice(*boxes[-1][1:])] if boxes else None


def _boxes(text: str) -> list[tuple[int, int, int]]:
    r"""Where every complete box begins, and its contents begin and end, in order.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall
    the grading.
    """
    open_braces: list[re.Match[str]] = []
    boxes = []
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append(brace)
        elif open_braces:
            opened = open_braces.pop()
            if len(opened[0]) > 1:
                boxes.append((opened.start(), opened.end(), brace.start()))
    return sorted(boxes)


def last_boxes(text: str) -> str | None:
    r"""The contents of the last box, and of those right before it: `\boxed{1}, \boxed{2}`."""
    boxes = _boxes(text)
    if not boxes:
        return None
    first = len(boxes) - 1
    while first > 0:
        end, start = boxes[first - 1][2] + 1, boxes[first][0]
        is_near = 0 <= start - end <= _LONGEST
        if not is_near or not _BETWEEN_BOXES.fullmatch(text, end, start):
            break
        first -= 1
    return ", ".join(text[start:end] for _, start, end in boxes[first:])


def stated_answer(text: str, closed: bool = True) -> str | None:
    """The answer that a response states by the rules of this module; None if it states none.

    `closed` says whether the text is what follows a closed thought.
    """
    plain = without_empty_boxes(text)
    if _BEGUN_BOX.search(plain):
        return _boxed_answer(plain)
    start = 0 if closed else answer_start(plain)
    announced = None if start is None else last_announcement(plain[start:])
    if announced:
        return announced[1] or None
    alone = _only_answer(text)
    if alone or not closed:
        return alone
    return _answer_of_last_line(plain.rstrip().rpartition("\n")[2])


def _boxed_answer(text: str) -> str | None:
    if is_torn(text):
        return None
    before = text[: _boxes(text)[-1][0]]
    compared = _COMPARED_BOX.search(before, max(0, len(before) - 80))
    inside = last_boxes(text) or ""
    is_prose = _TWO_WORDS.search(inside) and ("$" in inside or _ANNOUNCED.search(inside))
    if is_prose:
        return stated_answer(inside.replace("\\boxed", "")) or inside
    return f"{compared[1]} {inside}" if compared else inside


def last_announcement(text: str) -> tuple[int, str] | None:
    """Where the last announcement of an answer begins, and what it says; None without one."""
    found = None
    for found in _ANNOUNCED.finditer(text):
        pass
    before = None
    for before in _ANNOUNCED_BEFORE.finditer(text):
        pass
    if before and (found is None or before.start() > found.start()):
        return before.start(), before[1].strip(_MARKS + ",")
    return (found.start(), _statement(text, found.end())) if found else None


def _statement(text: str, start: int) -> str:
    """What is said from a place on: a displayed formula, or all up to the end of the clause."""
    displayed = _DISPLAYED.match(text, start)
    if displayed:
        return displayed[displayed.lastindex or 0]
    denied = _DENIED_FIRST.match(text, start)
    start = denied.end() if denied else start
    end = _END.search(text, start)
    said = text[start : end.start() if end else len(text)].strip(_MARKS)
    if _TWO_WORDS.search(said):
        said = _answer_of_last_line(said) or said
    return said if is_balanced(said) else said.strip("}").strip(_MARKS)


def _only_answer(text: str) -> str | None:
    alone = text.strip(_MARKS + "\n")
    is_short = 0 < len(alone) <= _LONGEST and "\n" not in alone
    if not is_short or "\\boxed" in alone or alone.endswith((":", "?")):
        return None
    is_formula_in_words = re.match(r"[A-Za-z]{2,}\b[^$]{0,40}\$", alone)
    is_formula = re.fullmatch(r"\$.{1,150}\$\.?", alone) and len(_TWO_WORDS.findall(alone)) < 2
    states = any(map(str.isalnum, alone)) and (is_formula or not _TWO_WORDS.search(alone))
    states = states and not is_formula_in_words
    return alone if states else None


def _answer_of_last_line(line: str) -> str | None:
    if len(line) > 2 * _LONGEST:  # a whole text without line breaks: its last sentence
        line = _SENTENCE_END.split(line[-2 * _LONGEST :])[-1]
    if line.endswith("?"):
        return None
    alone = _only_answer(line)
    if alone:
        return alone
    verb = None
    for verb in _VERB.finditer(line):
        pass
    formulas = list(_FORMULA.finditer(line))
    is_last = len(formulas) == 1 and (verb is None or verb.start() < formulas[0].end())
    if is_last:
        return formulas[0][formulas[0].lastindex or 0]
    return _statement(line, verb.end()) or None if verb else None


def is_torn(text: str) -> bool:
    r"""Whether the last `\boxed{` was cut off before its end."""
    begun = None
    for begun in _BEGUN_BOX.finditer(text):
        pass
    return begun is not None and last_boxed(text[begun.start() :]) is None


def with_braces(text: str) -> str:
    r"""The text with `\boxed{7}` for `\boxed 7`, which TeX shows in the same way."""
    return _BARE_BOX.sub(lambda box: rf"\boxed{{{box[1] or box[2]}}}", text)


def without_empty_boxes(text: str) -> str:
    r"""The text less every `\boxed{}`, which quotes the instruction rather than answers."""
    return _EMPTY_BOX.sub("", with_braces(text))


def answer_start(text: str) -> int | None:
    r"""Where a response that never closed its thought begins to state its answer; None if nowhere.

    That is the sentence with its last box that holds something, or else the last line: from the
    sentence that announces an answer, or all of it below a heading that does. Headings right above
    ("**Final Answer**") and lines without a word belong to it.
    """
    boxes = [
        box.start() for box in _BEGUN_BOX.finditer(text) if not _EMPTY_BOX.match(text, box.start())
    ]
    place = boxes[-1] if boxes else len(text.rstrip().removesuffix("</answer>").rstrip())
    line = text.rfind("\n", 0, place) + 1
    if not boxes:
        above = _above_headings(text, line)
        announced = last_announcement(text[above:place])
        if announced is None or not announced[1]:
            return None
        place = max(above + announced[0], line)
    start = max((end.end() for end in _SENTENCE_END.finditer(text, line, place)), default=line)
    if start == line:
        start = _above_headings(text, line)
    return start + len(text[start:]) - len(text[start:].lstrip())


def _above_headings(text: str, line: int) -> int:
    """Where the headings and the lines without a word right above the line at `line` begin."""
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        words = " ".join(re.findall(r"\w+", text[above:line]))
        if words and not _HEADING.fullmatch(words):
            break
        line = above
    return line
