"""Answers as text: taking wrappers off, finding them in a response. Standard library only."""

from __future__ import annotations

import re

END_OF_THOUGHT = "</think>"  # R1's; `rollouts.families` knows the others

# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

_WRAPPERS = (
    re.compile(r"\$\$(.+)\$\$", re.DOTALL),
    re.compile(r"\$([^$]+)\$"),
    re.compile(r"\\boxed\s*\{(.+)\}", re.DOTALL),
)
_PROSE = re.compile(r"(?<!\\)\b(?:[A-Za-z]{2,}\s+[A-Za-z]{2,}\b|[A-Z][a-z]{2,}\s+\d)")  # two words in a row, "Step 3"
LONGEST_BARE_ANSWER = 200  # characters of a response that may be nothing but an answer
_BRACES = re.compile(r"\\boxed\s*\{|\{|\}")
_EMPTY_BOX = re.compile(r"\\boxed\s*\{\s*\}")
_FILLED_BOX = re.compile(r"\\boxed\s*\{(?!\s*\})")
_ANNOUNCED = re.compile(
    r"(?:\bfinal answer\b|\banswer\s+is\b|\banswer\s*:|####|^A:)(?![^\d\n]{0,20}(?:\b(?:not|cannot)\b|n['\u2019]t\b))",
    re.IGNORECASE | re.MULTILINE,
)
_HEADING = re.compile(r"(?:(?:so|thus|hence|therefore) )?(?:(?:the|our|my) )?(?:final )?answer(?: is)?", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?]\s+")
# Tokens that families put around an answer, and at its end: `<|im_end|>`, R1's with its own bars, `<turn|>`, `</s>`.
_MARK = r"<([|\uff5c])[^<>|\uff5c\s]+\1>"
_MARKS_BEFORE = re.compile(rf"(?:{_MARK}\s*)+")
_MARK_AFTER = re.compile(rf"(?:{_MARK}|<\w+\|>|</s>|<(?:eos|eot|end|end_of_turn|seed:eos)>)\Z")
_LONGEST_MARK = 40  # characters


def strip_answer(answer: str) -> str:
    r"""The bare answer, without surrounding white space, `$`, `$$` and `\boxed{}`."""
    stripped = answer.strip()
    for wrapper in _WRAPPERS:
        match = wrapper.fullmatch(stripped)
        if match and _balanced(match[1]):
            return strip_answer(match[1])
    return stripped


def as_text(answer: object) -> str:
    """An answer as text; empty if it is neither text nor a number."""
    return "" if isinstance(answer, bool) or not isinstance(answer, str | int | float) else str(answer)


def text_after_thought(response: str, end_of_thought: str) -> str:
    """What follows the first end of the thought, or everything if there is none, without special tokens around it."""
    _, closed, rest = response.partition(end_of_thought)
    visible = (rest if closed else response).strip()
    while mark := _MARK_AFTER.search(visible, max(0, len(visible) - _LONGEST_MARK)):
        visible = visible[: mark.start()].rstrip()
    return visible[before.end() :] if (before := _MARKS_BEFORE.match(visible)) else visible


def last_boxed(text: str) -> str | None:
    r"""The contents of the last complete `\boxed{...}`, braces matched; None if there is none.

    Linear in the length of the text: a model that repeats an unfinished `\boxed{` must not stall the grading.
    """
    open_braces: list[tuple[bool, int]] = []
    last: tuple[int, int] | None = None
    for brace in _BRACES.finditer(text):
        if brace[0] != "}":
            open_braces.append((len(brace[0]) > 1, brace.end()))
        elif open_braces:
            is_box, start = open_braces.pop()
            if is_box and (last is None or start > last[0]):
                last = (start, brace.start())
    return text[slice(*last)] if last else None


def stated_answer(text: str) -> str | None:
    r"""The answer that a response states: in its last `\boxed{}` that holds something, or alone on its only line."""
    boxed = last_boxed(without_empty_boxes(text))
    if boxed is not None:
        return boxed
    alone = text.strip()
    is_answer = "\n" not in alone and len(alone) <= LONGEST_BARE_ANSWER and _PROSE.search(alone) is None
    return alone if alone and is_answer and "\\boxed" not in alone else None


def final_statement(text: str) -> str | None:
    r"""What of a response that never closed its thought can be graded; None if it states no answer.

    All of it if it has a box or is nothing but an answer; otherwise from where it announces its answer, so that no
    number of the thought is taken for one. A box that was cut off holds half an answer, which is none.
    """
    if stated_answer(text) is not None:
        return text
    start = answer_start(text)
    return None if start is None or "\\boxed" in text[start:] else text[start:]


def without_empty_boxes(text: str) -> str:
    r"""The text less every `\boxed{}`, which quotes the instruction rather than answers."""
    return _EMPTY_BOX.sub("", text)


def answer_start(text: str) -> int | None:
    r"""Where a response that never closed its thought begins to state its final answer; None if it does not.

    That is the sentence with its last `\boxed{` that holds something. Without one it is the last line: from the
    sentence that announces an answer ("the answer is", "Answer:", "####", but not "the answer is not"), or all of it
    below a heading that does. Headings right above ("**Final Answer**") and lines without a word belong to it.
    """
    boxes = [box.start() for box in _FILLED_BOX.finditer(text)]
    place = boxes[-1] if boxes else _announcement(text)
    if place is None:
        return None
    line = text.rfind("\n", 0, place) + 1
    start = max((end.end() for end in _SENTENCE_END.finditer(text, line, place)), default=line)
    if start == line:
        start = _above_headings(text, line)
    return start + len(text[start:]) - len(text[start:].lstrip())


def _announcement(text: str) -> int | None:
    """Where the last line names an answer, or begins below a heading that does."""
    end = len(text.rstrip())
    line = text.rfind("\n", 0, end) + 1
    named = [match.start() for match in _ANNOUNCED.finditer(text, line, end)]
    if named:
        return named[-1]
    return line if _HEADING.search(text, _above_headings(text, line), line) else None


def _above_headings(text: str, line: int) -> int:
    """Where the headings begin, and the lines without a word, that stand right above the line at `line`."""
    while line > 0:
        above = text.rfind("\n", 0, line - 1) + 1
        words = " ".join(re.findall(r"\w+", text[above:line]))
        if words and not _HEADING.fullmatch(words):
            break
        line = above
    return line


def _balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions, not one."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0
