"""Reference answers as text: without wrappers, in their normal form, and which are none."""

import ast
import html
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal

from openrlhf_swap.rewards.forms import PATTERNS, TABLES, compiled, is_balanced, words, write_latex
from openrlhf_swap.rewards.references import answer_text
from openrlhf_swap.rewards.statements import last_boxes

# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
LONG_ANSWER = "an answer of more than 200 characters, such as a whole solution"
PROSE_ANSWER = "a sentence as its answer"
PLACEHOLDER_ANSWER = "a placeholder as its answer, such as 'proof' or 'N/A'"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"

LONGEST_ANSWER = 200  # characters; the longest answer of the benchmarks has 198
NUMBER = PATTERNS.number
MOST_WORDS = 5  # of an answer such as "7 minutes and 5 seconds"
_DEEPEST = 20  # wrappers inside of wrappers
_PLACEHOLDERS = [*map(compiled, TABLES["placeholders"])]


def strip_answer(answer: str) -> str:
    r"""The bare answer, without surrounding white space, `$`, `$$` and `\boxed{}`."""
    stripped = answer.strip()
    for _ in range(_DEEPEST):
        wrapped = PATTERNS.wrapped.fullmatch(stripped)
        if not wrapped:
            break
        inside = wrapped[wrapped.lastindex or 0]
        if not is_balanced(inside):
            break
        stripped = inside.strip()
    return stripped


def normal_answer(value: object) -> str:
    r"""An answer as it is graded and scored; empty for what is no text, number or list of these.

    Of a whole solution the answer alone: what follows the last `####`, or stands in the last
    `\boxed{}`. A number has no leading zeros, a whole one no decimals (a column of integers with
    holes is read as floats), a float no exponent; full-width digits, ¾ and x² are written as the
    grader knows them. A list, also one written as text, is its items with commas between them.
    Doubled backslashes are halved; escapes of JSON and HTML, and quotes, are taken off.
    """
    text = answer_text(value)
    if isinstance(value, float):  # 1e-05 is 0.00001
        text = format(Decimal(text), "f") if math.isfinite(value) else ""
    items = value if isinstance(value, list | tuple) else _listed(text)
    if items is not None:
        normal = [strip_answer(normal_answer(item)) for item in items]
        return ", ".join(normal) if all(normal) else ""
    _, mark, after = write_latex(_unescaped(text)).rpartition("####")
    text = last_boxes(after) or after
    if mark:
        text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", after)
    bare = strip_answer(text)
    number = NUMBER.fullmatch(bare)
    if number:
        text = text.replace(bare, "".join(number.groups("")))
    return text.strip()


def _unescaped(text: str) -> str:
    """The text less escapes of JSON and HTML, quotes around it, and doubled backslashes."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text)
    text = html.unescape(text)
    text = re.sub("^\\s*[\"'`\u201c]([^\"'`\u201c\u201d]*)[\"'`\u201d]\\s*$", r"\1", text)
    text = text.replace("\\/", "/")
    while PATTERNS.doubled.fullmatch(text):
        text = text.replace("\\\\", "\\")
    return text


def _listed(text: str) -> Sequence[object] | None:
    r"""The items of a list of texts that JSON or Python wrote, such as `["165"]`; else None.

    LaTeX in it may have been escaped or not: `\f` begins `\frac` and is no form feed.
    """
    if not re.match(r"\s*[\[(]\s*[\"']", text):
        return None
    if re.search(r"(?<!\\)(?:\\\\)*\\(?![\\\"']|u[0-9a-fA-F]{4})", text):
        text = re.sub(r"\\(?![\"'])", r"\\\\", text)
    with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        items = ast.literal_eval(text.strip())
        return items if isinstance(items, list | tuple) else None
    return None


def visible_fault(answer: str) -> str | None:
    """What is wrong with a reference answer at first sight, worded to follow "dropped with"."""
    bare = strip_answer(answer)
    if not bare:
        return EMPTY_ANSWER
    if len(bare) > LONGEST_ANSWER:
        return LONG_ANSWER
    whole = re.sub(r"\\[A-Za-z]+|[\W_]", "", bare).casefold() or bare
    for placeholder in _PLACEHOLDERS:
        if placeholder.fullmatch(bare) or placeholder.fullmatch(whole):
            return PLACEHOLDER_ANSWER
    plain = re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", bare)
    found = re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", plain.lower())
    has_verb = not set(found).isdisjoint(words("sentences"))
    is_sentence = len(found) > 1 and has_verb
    if is_sentence or len(found) > MOST_WORDS:
        return PROSE_ANSWER
    return None
