"""Reference answers as text: without wrappers, in their normal form, and which are none.

Standard library only.
"""

import ast
import html
import math
import re
from contextlib import suppress
from decimal import Decimal

from openrlhf_swap.rewards.forms import is_balanced, write_latex
from openrlhf_swap.rewards.statements import last_boxes
from openrlhf_swap.rewards.verifiers import answer_text

END_OF_THOUGHT = "</think>"  # R1's; `rollouts.families` knows the others

# How R1-style models are asked, in training and in evaluation.
SUFFIX = r" Please reason step by step, and put your final answer within \boxed{}."

_WRAPPERS = [("$$", "$$"), ("$", "$"), (r"\boxed{", "}"), (r"\boxed {", "}")]
_WRAPPERS += [(r"\(", r"\)"), (r"\[", r"\]")]
_DEEPEST = 20  # wrappers inside of wrappers

EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
LONG_ANSWER = "an answer of more than 200 characters, such as a whole solution"
PROSE_ANSWER = "a sentence as its answer"
PLACEHOLDER_ANSWER = "a placeholder as its answer, such as 'proof' or 'N/A'"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"

LONGEST = 200  # characters; the longest answer of the benchmarks has 198
MOST_WORDS = 5  # of an answer such as "7 minutes and 5 seconds"
NUMBER = re.compile(r"([+-]?)(\d+)(?:\.0+|(\.\d+))?", re.ASCII)
_QUOTED = re.compile("\\s*(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`|\u201c([^\u201d]*)\u201d)\\s*")
_BACKSLASHES = re.compile(r"\\+")
_LONE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\(?![\\\"']|u[0-9a-fA-F]{4})")
# Placeholders are made of these words and of those around them; "no solution", "undefined" and
# "true" are answers.
_TELLING = """
answer answers solution solutions proof proofs explanation explanations response prove proved proven show shown omitted
required needed desired missing found given provided applicable available specified known unknown unanswered
unavailable exercise apply tba none see refer vary varies various sample determined completed added reader ended
problem question essay pending blank placeholder image attached attachment tbd todo nil null nan
"""
_AROUND = """
a an the this does your final full no not is are be to may will can as hence please left free open statement here it
that above below text figure diagram graph picture table
"""
_WHOLE = re.compile(  # of the letters alone, without spaces
    r"na|qed|notfound|asabove|(?:需|[请請]?[详詳]?|略|开放)(?:答案?|解[答析]?|[证證証]明?|[题題])*(?:省?略|[毕畢]|不唯?一|暂?[无無](?:答案|解析)?"
    r"|なし|[见見參参].{0,4}|同上)?|不[适適]用|증명|정답없음|생략|(?:풀이|해설)참조|preuve|prueba|prova|bewijs|dowód"
    r"|d[eé]monstration|dimostrazione|demostrar|доказать|証明せよ|증명생략|voir(?:la)?solution"
    r"|demostración|ver(?:la)?solución|(?:ohne)?beweis|siehe(?:die)?lösung|доказательство|доказано|смрешение|нетответа"
)
_MARKS = re.compile(r"\\(?:black)?square|\\Box|\\qed|[-\u2013\u2014?_.\s\[\]{}*…□■∎]")
_OF_SENTENCES = re.compile(
    r"\b(is|are|was|were|has|have|the|he|she|it|they|we|so|therefore|because|thus|answer)\b"
)


def strip_answer(answer: str) -> str:
    r"""The bare answer, without surrounding white space, `$`, `$$` and `\boxed{}`."""
    stripped = answer.strip()
    for _ in range(_DEEPEST):
        inside = _unwrapped(stripped)
        if not inside:
            break
        stripped = inside.strip()
    return stripped


def _unwrapped(text: str) -> str:
    for start, end in _WRAPPERS:
        if text.startswith(start) and text.endswith(end) and len(text) > len(start) + len(end):
            inside = text[len(start) : -len(end)]
            is_one = is_balanced(inside)
            if end != "}":
                is_one = start not in inside and end not in inside
            if is_one:
                return inside
    return ""


def normal_answer(value: object) -> str:
    r"""An answer as it is graded and scored; empty for what is neither text, a number nor a list of
    these.

    Of a whole solution the answer alone: what follows the last `####`, or stands in the last
    `\boxed{}`. A number has no leading zeros, a whole one no decimals (a column of integers with
    holes is read as floats), a float no exponent; full-width digits, ¾ and x² are written as the
    grader knows them. A list, also one written as text, is its items with commas between them.
    Doubled backslashes are halved; escapes of JSON and HTML, and quotes, are taken off.
    """
    if isinstance(value, list | tuple):
        items = [normal_answer(item) for item in value]
        return (
            items[0]
            if len(items) == 1
            else ", ".join(map(strip_answer, items))
            if all(items)
            else ""
        )
    text = answer_text(value)
    if isinstance(
        value, float
    ):  # the grader finds 1e-05 equal to itself, but to no other spelling of the number
        text = format(Decimal(text), "f") if math.isfinite(value) else ""
    if (listed := _listed(text)) is not None:
        return normal_answer(listed)
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda code: chr(int(code[1], 16)), text).replace(
        "\\/", "/"
    )
    text = html.unescape(text) if re.search(r"&(?:[A-Za-z]{2,6}\d{0,2}|#\d+);", text) else text
    if quoted := _QUOTED.fullmatch(text):
        text = quoted[quoted.lastindex or 0]
    while (runs := _BACKSLASHES.findall(text)) and all(len(run) % 2 == 0 for run in runs):
        text = _BACKSLASHES.sub(lambda run: run[0][::2], text)
    _, mark, after = write_latex(text).rpartition("####")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", after) if mark else last_boxes(after) or after
    bare = strip_answer(text)
    if number := NUMBER.fullmatch(bare):
        sign, whole, decimals = number.groups(default="")
        text = text.replace(bare, f"{sign}{whole.lstrip('0') or 0}{decimals}")
    return text.strip()


def _listed(text: str) -> list[object] | None:
    r"""The items of a list of texts that JSON or Python wrote, such as `["165"]`; None for any
    other text.

    LaTeX in it may have been escaped or not: `\f` is the beginning of `\frac` rather than a form
    feed.
    """
    if re.match(r"\s*[\[(]\s*[\"']", text):
        if _LONE_BACKSLASH.search(text):
            text = re.sub(r"\\(?![\"'])", r"\\\\", text)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            items = ast.literal_eval(text.strip())
            return list(items) if isinstance(items, list | tuple) else None
    return None


def visible_fault(answer: str, keeps_placeholders: bool = False) -> str | None:
    bare = strip_answer(answer)
    if not bare:
        return EMPTY_ANSWER
    if len(bare) > LONGEST:
        return LONG_ANSWER
    if _is_placeholder(bare):
        return None if keeps_placeholders else PLACEHOLDER_ANSWER
    plain = re.sub(r"\\[A-Za-z]+\s*\{[^{}]*\}", " ", bare)
    words = len(re.findall(r"(?<![\\A-Za-z])[A-Za-z]{2,}", plain))
    is_sentence = words > MOST_WORDS or (words > 1 and _OF_SENTENCES.search(plain.lower()))
    return PROSE_ANSWER if is_sentence else None


def _is_placeholder(bare: str) -> bool:
    words = re.findall(r"\w+", re.sub(r"\\[A-Za-z]+|\bby [a-z]+|_", " ", bare))
    lower = {word if word == "A" else word.casefold() for word in words}  # "Answer: A" is an answer
    whole = "".join(words).casefold()
    telling = lower & {*_TELLING.split()}
    if telling and lower - telling <= {*_AROUND.split()}:
        return whole not in ("nosolution", "nosolutions")
    return bool(whole and _WHOLE.fullmatch(whole)) or not _MARKS.sub("", bare)
