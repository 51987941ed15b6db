"""Reference answers: a data set's answers, in the form that responses are graded against and steps are scored on."""

from __future__ import annotations

import ast
import hashlib
import html
import math
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from decimal import Decimal
from importlib.metadata import version
from itertools import compress
from pathlib import Path

from tqdm import tqdm

from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.rewards.answers import answer_text, strip_answer, write_latex
from openrlhf_swap.rewards.grader import Grader
from openrlhf_swap.rewards.statements import last_boxes

EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
LONG_ANSWER = "an answer of more than 200 characters, such as a whole solution"
PROSE_ANSWER = "a sentence as its answer"
PLACEHOLDER_ANSWER = "a placeholder as its answer, such as 'proof' or 'N/A'"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"

LONGEST = 200  # characters; the longest answer of the benchmarks has 198
MOST_WORDS = 5  # of an answer such as "7 minutes and 5 seconds"
ANSWERS_A_PROCESS = 64  # a grading process that starts for fewer costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_NUMBER = re.compile(r"([+-]?)(\d+)(?:\.0+|(\.\d+))?", re.ASCII)
_TEXT_LIST = re.compile(r"\s*[\[(]\s*[\"']")
_QUOTED = re.compile("\\s*(?:\"([^\"]*)\"|'([^']*)'|`([^`]*)`|\u201c([^\u201d]*)\u201d)\\s*")
_ENTITY = re.compile(r"&(?:[A-Za-z]{2,6}\d{0,2}|#\d+);")
_CODE_POINT = re.compile(r"\\u([0-9a-fA-F]{4})")
_BACKSLASHES = re.compile(r"\\+")
_LONE_BACKSLASH = re.compile(r"(?<!\\)(?:\\\\)*\\(?![\\\"']|u[0-9a-fA-F]{4})")
_NOT_WORDS = re.compile(r"\\[A-Za-z]+|\bby [a-z]+|_")
# Placeholders are made of these words and of those around them; "no solution", "undefined" and "true" are answers.
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
_TEXT_COMMAND = re.compile(r"\\[A-Za-z]+\s*\{[^{}]*\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_OF_SENTENCES = re.compile(r"\b(is|are|was|were|has|have|the|he|she|it|they|we|so|therefore|because|thus|answer)\b")


def normal_answer(value: object) -> str:
    r"""An answer as it is graded and scored; empty for what is neither text, a number nor a list of these.

    Of a whole solution the answer alone: what follows the last `####`, or stands in the last `\boxed{}`. A number has
    no leading zeros, a whole one no decimals (a column of integers with holes is read as floats), a float no exponent,
    and characters that the grader does not know as mathematics are written as it does: full-width digits, ¾, x². A
    list, which may be written as text, is its items with commas between them. Backslashes that are all doubled, by a
    second escaping, are halved; escapes of JSON and HTML and quotes around all of it are taken off.
    """
    if isinstance(value, list | tuple):
        items = [normal_answer(item) for item in value]
        return items[0] if len(items) == 1 else ", ".join(map(strip_answer, items)) if all(items) else ""
    text = answer_text(value)
    if isinstance(value, float):  # the grader finds 1e-05 equal to itself, but to no other spelling of the number
        text = format(Decimal(text), "f") if math.isfinite(value) else ""
    if (listed := _listed(text)) is not None:
        return normal_answer(listed)
    text = _CODE_POINT.sub(lambda code: chr(int(code[1], 16)), text).replace("\\/", "/")
    text = html.unescape(text) if _ENTITY.search(text) else text
    if quoted := _QUOTED.fullmatch(text):
        text = quoted[quoted.lastindex or 0]
    while (runs := _BACKSLASHES.findall(text)) and all(len(run) % 2 == 0 for run in runs):
        text = _BACKSLASHES.sub(lambda run: run[0][::2], text)
    text = write_latex(text)
    text = _THOUSANDS.sub("", text.rpartition("####")[2]) if "####" in text else last_boxes(text) or text
    bare = strip_answer(text)
    if number := _NUMBER.fullmatch(bare):
        sign, whole, decimals = number.groups(default="")
        text = text.replace(bare, f"{sign}{whole.lstrip('0') or 0}{decimals}")
    return text.strip()


def _listed(text: str) -> list[object] | None:
    r"""The items of a list of texts that JSON or Python wrote, such as `["165"]`; None for any other text.

    LaTeX in it may have been escaped or not: `\f` is the beginning of `\frac` rather than a form feed.
    """
    if _TEXT_LIST.match(text):
        if _LONE_BACKSLASH.search(text):
            text = re.sub(r"\\(?![\"'])", r"\\\\", text)
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            items = ast.literal_eval(text.strip())
            return list(items) if isinstance(items, list | tuple) else None
    return None


def visible_fault(answer: str, keeps_placeholders: bool = False) -> str | None:
    """What is visibly wrong with a normal answer; None if nothing is."""
    bare = strip_answer(answer)
    if not bare:
        return EMPTY_ANSWER
    if len(bare) > LONGEST:
        return LONG_ANSWER
    if _is_placeholder(bare):
        return None if keeps_placeholders else PLACEHOLDER_ANSWER
    plain = _TEXT_COMMAND.sub(" ", bare)
    words = len(_WORD.findall(plain))
    is_sentence = words > MOST_WORDS or (words > 1 and _OF_SENTENCES.search(plain.lower()))
    return PROSE_ANSWER if is_sentence else None


def _is_placeholder(bare: str) -> bool:
    words = re.findall(r"\w+", _NOT_WORDS.sub(" ", bare))
    lower = {word if word == "A" else word.casefold() for word in words}  # "Answer: A" is an answer
    whole = "".join(words).casefold()
    telling = lower & {*_TELLING.split()}
    if telling and lower - telling <= {*_AROUND.split()}:
        return whole not in ("nosolution", "nosolutions")
    return bool(whole and _WHOLE.fullmatch(whole)) or not _MARKS.sub("", bare)


def find_gradable(answers: Iterable[str], label: str) -> set[str]:
    """The answers that math-verify can grade against; each is tried once, on all cores, with a progress bar.

    Good answers are remembered for later calls, in other processes too; the others are tried again.
    """
    distinct, memory = set(answers), remembered_file()
    known = set(map(str, read_rows(memory)))
    simple = {answer for answer in distinct if _NUMBER.fullmatch(answer)}
    new = sorted(distinct - known - simple)
    grader = Grader(processes=min(len(os.sched_getaffinity(0)), 1 + len(new) // ANSWERS_A_PROCESS))
    good: set[str] = set()
    starts = range(0, len(new), GRADED_AT_ONCE)
    for start in tqdm(starts, desc=f"[{label}] parsing answers", unit=f"{GRADED_AT_ONCE} answers", leave=False):
        part = new[start : start + GRADED_AT_ONCE]
        good.update(compress(part, grader.is_gradable(part)))
    grader.close()
    if good:
        remember(memory, sorted(known | good))
    return (known | good | simple) & distinct


def remember(path: Path, rows: Iterable[object]) -> None:
    """Write what the next start need not find out again, if the disk lets us."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, rows)


def remembered_file() -> Path:
    """Where good answers are remembered: one file for each version of the grader."""
    code = [Path(__file__).with_name(name).read_bytes() for name in ("grading.py", "answers.py", "statements.py")]
    grader = hashlib.sha256(b"".join([*code, version("math-verify").encode()])).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "openrlhf_swap" / f"answers_{grader}.jsonl"


def examples(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """Answers of a data set, one line each, as they are graded and scored and as they were given: odd ones first."""
    texts = ((str(given), strip_answer(answer)) for given, answer in pairs)
    distinct = dict.fromkeys((text if len(text) <= 40 else "..." + text[-36:], answer) for text, answer in texts)
    odd = [pair for pair in distinct if pair[0].strip("$") != pair[1]][: EXAMPLES - 2]
    shown = [*odd, *(pair for pair in distinct if pair not in odd)][:EXAMPLES]
    return [f"{answer!r}" + (f" (from {given!r})" if given != answer else "") for given, answer in shown]
