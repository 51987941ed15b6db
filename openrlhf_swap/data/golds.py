"""Reference answers: normalise what a data set gives, and find out what responses can be graded against."""

from __future__ import annotations

import hashlib
import math
import os
import re
import unicodedata
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

from tqdm import tqdm

from openrlhf_swap.files import read_rows, write_rows
from openrlhf_swap.rewards import Grader, worker
from openrlhf_swap.rollouts import answers as answer_texts
from openrlhf_swap.rollouts.answers import last_boxed, strip_answer

EMPTY_ANSWER = "an empty answer, or one that is neither text nor a number"
LONG_ANSWER = "an answer of more than 200 characters, such as a whole solution"
PROSE_ANSWER = "a sentence as its answer"
UNPARSABLE_ANSWER = "an answer that cannot be parsed"

LONGEST = 200  # characters; the longest answer of the benchmarks has 198
MOST_WORDS = 5  # of an answer such as "7 minutes and 5 seconds"
ANSWERS_A_PROCESS = 64  # for fewer, starting a grading process costs more than it saves
GRADED_AT_ONCE = 256
EXAMPLES = 5

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")
_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_TEXT_COMMAND = re.compile(r"\\[A-Za-z]+\s*\{[^{}]*\}")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_OF_SENTENCES = re.compile(r"\b(is|are|was|were|has|have|the|he|she|it|they|we|so|therefore|because|thus|answer)\b")
_FORMS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<wide>": "%s", "<narrow>": "%s", "<font>": "%s"}


def normal_answer(value: object) -> str:
    r"""Normalise an answer for grading and scoring; empty for what is neither text nor a number.

    From a whole solution only the answer is taken: what follows the last `####`, or stands in the last `\boxed{}`. A
    whole number loses its decimals (a column of integers with missing values is read as floats), and characters that
    the grader does not read as mathematics are rewritten: full-width digits, ¾, x².
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return ""
    text = "".join(_spelled(kind, "".join(run)) for kind, run in groupby(str(value), _kind)).replace("\u2212", "-")
    text = _THOUSANDS.sub("", text.rpartition("####")[2]) if "####" in text else last_boxed(text) or text
    whole = _WHOLE.fullmatch(text.strip())
    return whole[1] if whole else text.strip()


def _kind(character: str) -> str:
    """Unicode's compatibility tag of a character, such as "<super>"; empty for a character without one."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return kind if kind.startswith("<") else ""


def _spelled(kind: str, run: str) -> str:
    """A run of characters of one kind, as LaTeX or ASCII."""
    if kind == "<fraction>":
        numbers = (unicodedata.normalize("NFKC", character).split("\u2044") for character in run)
        return "".join(f"\\frac{{{above}}}{{{below}}}" for above, below in numbers)
    return _FORMS[kind] % unicodedata.normalize("NFKC", run) if kind in _FORMS else run


def fault_of(answer: str) -> str | None:
    """What is wrong with a normalised answer at first sight, without the grader; None for nothing."""
    bare = strip_answer(answer)
    if not bare:
        return EMPTY_ANSWER
    if len(bare) > LONGEST:
        return LONG_ANSWER
    plain = _TEXT_COMMAND.sub(" ", bare)
    words = len(_WORD.findall(plain))
    is_sentence = words > 1 and _OF_SENTENCES.search(plain.lower())
    return PROSE_ANSWER if is_sentence or words > MOST_WORDS else None


def gradable(answers: Iterable[str], label: str) -> set[str]:
    """The answers that the grader can grade against; each is tried once, on all cores, under a progress bar.

    Those that it can are cached for later calls, also by other processes; the others are tried again.
    """
    distinct, cache = list(dict.fromkeys(answers)), remembered_file()
    cached = set(map(str, read_rows(cache)))
    new = [answer for answer in distinct if answer not in cached]
    cores = len(os.sched_getaffinity(0))
    grader = Grader(processes=min(cores, 1 + len(new) // ANSWERS_A_PROCESS))
    parsed: set[str] = set()
    with tqdm(
        total=len(distinct), initial=len(distinct) - len(new), desc=f"[{label}] parsing answers", leave=False
    ) as bar:
        for start in range(0, len(new), GRADED_AT_ONCE):
            part = new[start : start + GRADED_AT_ONCE]
            parsed.update(answer for answer, good in zip(part, grader.is_gradable(part), strict=True) if good)
            bar.update(len(part))
    grader.close()
    if parsed:
        with suppress(OSError):  # a full disk or no permission: they are parsed again next time
            cache.parent.mkdir(parents=True, exist_ok=True)
            write_rows(cache, sorted(cached | parsed))
    return (cached | parsed).intersection(distinct)


def remembered_file() -> Path:
    """The cache of gradable answers; a changed grader gets a new file."""
    code = [Path(str(module.__file__)).read_bytes() for module in (worker, answer_texts)]
    grader = hashlib.sha256(b"".join([*code, version("math-verify").encode()])).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return folder / "openrlhf_swap" / f"answers_{grader}.jsonl"


def examples(pairs: Iterable[tuple[object, str]]) -> list[str]:
    """The first answers of a data set as they are graded and scored, and as given where that differs; a line each."""
    shown = list(dict.fromkeys((_shortened(str(given)), strip_answer(answer)) for given, answer in pairs))[:EXAMPLES]
    return [f"{answer!r}" + (f" (from {given!r})" if given != answer else "") for given, answer in shown]


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else "..." + text[-36:]
