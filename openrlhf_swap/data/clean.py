"""Which rows of a data set of maths problems go into a prompt set, and why the others do not.

Problems are the same or nearly if spacing, punctuation and LaTeX spelling differ, or the text
around them: a template, an instruction in any language, a number, a heading, tags, JSON. Other
numbers make another problem.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from tqdm import tqdm

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.rows import EMPTY_PROBLEM, find_faults
from openrlhf_swap.rewards.verifiers import MATH, Reference

SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"

Reason = dict[
    str, Any
]  # why a row is dropped: `reason`, and the benchmark problem or earlier row that it repeats

# When one text counts as containing the other; docs/use/data.md says how these were chosen.
SHARED = 0.8
LONG_TEXT = 40  # triples; in a shorter text a single word can change the question, so there:
WORDS_SHARED = 0.95
SHARE_OF_LONGER = 0.5
FEWEST_NUMBERS = 2

# When the text around a benchmark problem that a row contains is a wrapper, and not a part of
# another problem.
FEWEST_ROWS = 3  # of the set, which begin and end with the same text
FEWEST_LETTERS = 4  # where it is on one side only: many problems end with "+ 2x"
SHARE = 0.1  # of the rows with the same triple, for it to belong to wrappers
PART = 8  # characters of the keys by which contained problems are looked up; shorter problems are compared as a whole

_ESCAPED = re.compile(r"\\\\|\\n(?![a-z])|\\u[0-9a-f]{4}|\\\"")
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|[\\\"'nt/])")
_NUMBERS = re.compile(r"[\d.]+")
_FORMULA = re.compile(r"[-+*/=](?![a-z]{2})")  # but /no_think is none
_LABEL = re.compile(r"\(?[a-z]{1,3}#?\)?")  # "Q17)"
_QUOTATION = re.compile(r"^[ \t]*>+[ \t]?", re.MULTILINE)  # Markdown's
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)|!\[[^\]]*\]\([^)]*\)", re.DOTALL | re.IGNORECASE)
# What two copies of a problem may write differently, in the order of replacement.
_REWRITES = (
    (r"\\\\|\\(?:begin|end)\s*\{[^}]*\}", " "),
    (r"\\[,;:!> ()\[\]]|[$~]", " "),
    (
        r"\\(?:left|right|[bB]igg?[lrm]?|(?:display|text)style|limits|q?quad|operatorname|text|text(?:bf|it|rm)"
        r"|math(?:rm|bf|it|sf)|mbox|hbox|emph|boldsymbol|bf|rm|it)(?![A-Za-z])\*?",
        " ",
    ),
    (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
    (r"\\frac\s*(?:([^\W_])|\{([^{}]*)\})\s*(?:([^\W_])|\{([^{}]*)\})", r" \1\2/\3\4 "),
    (r"\\(?:[clhv]?dots[bcimo]?)(?![A-Za-z])|\.{3,}", " dots "),
    (r"\\leq?(?:slant)?(?![A-Za-z])|≤", " <= "),
    (r"\\geq?(?:slant)?(?![A-Za-z])|≥", " >= "),
    (r"\\not\s*=|\\neq?(?![A-Za-z])|≠", " != "),
    (r"\\lt(?![A-Za-z])", " < "),
    (r"\\gt(?![A-Za-z])", " > "),
    (r"\\[bp]mod(?![A-Za-z])", " mod "),
    (r"\\(?:cdot|times|ast)(?![A-Za-z])|[\u00d7\u00b7]", " * "),
    (r"π", " pi "),
    (r"°|\\degree(?![A-Za-z])", " circ "),
    (r"√", " sqrt "),
    (r"\u2212", "-"),
    (r"-{2,}|\*{2,}", " "),
    (r"(?<=\w)-(?=[^\W\d_]{2})", " "),  # six-sided, but not x-1
    (r"(?<=\d)\{?,\}?\s*(?=\d{3}(?!\d))", ""),  # 10,000
    (r"(?<=[\d)])!(?!=)|(?<![^\W\d_])([^\W\d_])!(?!=)", r"\1 factorial "),
)
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|!=|[-+*/=<>|()]")
_BAR = "[|\uff5c]"  # DeepSeek's templates have the wide one
_MARK = rf"(?:<{_BAR}[^|<>]{{2,40}}{_BAR}>|</?s>|<bos>|<eos>|\[gMASK\]|<sop>|\[/?INST\]|<(?:start|end)_of_turn>)"
SPECIAL = re.compile(_MARK)  # special tokens of chat templates, such as <|im_start|>
_USER_TURN = re.compile(
    rf"(?:{_MARK}\s*user\b|<{_BAR}(?:\w{{0,6}}_)?user(?:_token)?{_BAR}>(?:user\b)?|\[INST\])\s*(?:{_MARK}\s*)*"
    rf"(?:<<SYS>>.*?<</SYS>>\s*)?(.*?)\s*(?={_MARK}|\Z)",
    re.DOTALL | re.IGNORECASE,
)


def strip_template(problem: str) -> str:
    """The user's turn of a prompt rendered with a chat template; other texts, and longer chats, as
    they are.
    """
    turns = _USER_TURN.findall(problem) if SPECIAL.search(problem) else []
    return turns[0] if len(turns) == 1 and turns[0] else problem


def find_reasons(
    problems: Sequence[str],
    references: Sequence[Reference],
    index: BenchmarkIndex | None,
    grader: str = MATH,
    known: Sequence[str | None] = (),
    keeps_placeholders: bool = False,
) -> list[Reason | None]:
    """Why each row is dropped, None for a row that is kept: of rows with the same problem, the
    first usable one.

    A reason of the problem goes before one of the answer. Chat templates do not count. `known` are
    faults of chats.
    """
    reading = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
    texts = {
        problem: read_row(strip_template(problem)) for problem in reading
    }  # a set may repeat a problem 100 times
    rows = RowSet([row[0] for row in texts.values()])
    wrappers: dict[str, str] = {}
    faults: dict[str, Reason] = {}  # of problems
    for problem, row in tqdm(
        texts.items(), desc="[prepare] comparing", unit="problem", disable=index is None
    ):
        match = index and index.find(row, rows)
        if not problem.strip():
            faults[problem] = {"reason": EMPTY_PROBLEM}
        elif match:
            reason = SAME_AS_BENCHMARK if match.exact else NEAR_BENCHMARK
            faults[problem] = {
                "reason": reason,
                "benchmark": match.benchmark,
                "benchmark_id": match.id,
            }
            if any(match.wrapper):
                wrapper = _NUMBERS.sub("#", "\0".join(match.wrapper))
                if wrapper not in wrappers:
                    wrappers[wrapper] = _show_wrapper(strip_template(problem), *match.wrapper)
                faults[problem]["wrapper"] = wrappers[wrapper]
    given = zip_longest(problems, known)
    reasons = [{"reason": fault} if fault else faults.get(problem) for problem, fault in given]
    left = [number for number, reason in enumerate(reasons) if reason is None]
    first: dict[str, int] = {}
    answers = [references[number] for number in left]
    for number, fault in zip(
        left, find_faults(answers, grader, "prepare", keeps_placeholders), strict=True
    ):
        if fault:
            reasons[number] = {"reason": fault}
        elif (earlier := first.setdefault(texts[problems[number]][0].key, number)) != number:
            reasons[number] = {"reason": DUPLICATE, "duplicate_of": earlier}
    return reasons


def _show_wrapper(row: str, before: str, after: str) -> str:
    """The text around a problem, "Question: ... Answer:", from the keys of both sides."""
    start = (
        bisect_left(range(len(row)), len(before), key=lambda end: len(read_text(row[:end]).key))
        if before
        else 0
    )
    end = (
        bisect_right(
            range(len(row)), -len(after), key=lambda begin: -len(read_text(row[begin:]).key)
        )
        - 1
    )
    return f"{row[:start].strip()} ... {row[end:].strip() if after else ''}".strip()


@dataclass(frozen=True)
class Text:  # what is compared about a problem; figures count in the key alone
    key: (
        str  # equal for two texts that differ only in spacing, punctuation, case and LaTeX spelling
    )
    words: frozenset[str]  # distinct words, LaTeX command names and operators
    numbers: Counter[str]  # how often each number occurs
    triples: frozenset[tuple[str, ...]]  # distinct runs of three words, operators or numbers


class Match(NamedTuple):
    """The benchmark problem that a row repeats, word for word or nearly, and the keys of the text
    before and after.
    """

    benchmark: str
    id: str
    exact: bool
    wrapper: tuple[str, str] = ("", "")


def read_text(problem: str, figures: bool = False) -> Text:
    """A problem to compare; with figures in its key if prose with fewer than two numbers may ask
    about others.
    """
    prose = _tokens(_FIGURE.sub(" ", problem))
    numbers = Counter(filter(_is_number, prose))
    tokens = prose if numbers.total() >= FEWEST_NUMBERS and not figures else _tokens(problem)
    # `a b c` and `abc` are the same product, `1 2` and `12` are not the same number.
    gaps = [
        " " if _is_number(left) and _is_number(right) else "" for left, right in pairwise(tokens)
    ]
    return Text(
        key="".join(token + gap for token, gap in zip(tokens, [*gaps, ""], strict=False)),
        words=frozenset(token for token in prose if not _is_number(token)),
        numbers=numbers,
        triples=frozenset(zip(prose, prose[1:], prose[2:], strict=False)),
    )


def read_row(row: str) -> list[Text]:
    """A row as it stands and, where this differs, as a text in JSON, HTML or a quotation; each also
    with figures.

    A wrapper's numbers leave these out of the key, though the problem alone may have fewer than
    two.
    """
    from_json = _ESCAPE.sub(_unescape, row) if _ESCAPED.search(row) else row
    twice = _ESCAPE.sub(_unescape, from_json) if from_json != row else row  # JSON in JSON
    texts = dict.fromkeys(
        (row, from_json, twice, html.unescape(_TAG.sub(" ", row)), _QUOTATION.sub("", row))
    )
    return [
        read_text(text, figures)
        for text in texts
        for figures in (False, True)[: 1 + bool(_FIGURE.search(text))]
    ]


def _unescape(found: re.Match[str]) -> str:
    return (
        chr(int(found[1][1:], 16))
        if len(found[1]) > 1
        else found[1].replace("n", " ").replace("t", " ")
    )


def _tokens(text: str) -> list[str]:
    text = re.sub(
        "[\u00ad\u200b-\u200f\u2060\ufeff]", "", unicodedata.normalize("NFKC", text)
    )  # what is invisible
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return _TOKEN.findall(text.casefold())


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def nearly_same(first: Text, second: Text) -> bool:
    """Whether a problem is another problem with a few words changed or text added.

    All numbers, 80% of the words and 80% of the triples of one text must occur in the other. If it
    has fewer than 40 triples, so must 95% of its words, it needs two numbers, and half of the
    longer one's triples must be shared, where no formula at its end may go on. Other numbers make
    another problem.
    """
    return _contains(first, second) or _contains(second, first)


def _contains(longer: Text, shorter: Text) -> bool:
    shared = len(longer.triples & shorter.triples)
    if shared < SHARED * len(shorter.triples) or not shorter.numbers <= longer.numbers:
        return False
    words = len(longer.words & shorter.words)
    if len(shorter.triples) >= LONG_TEXT:
        return words >= SHARED * len(shorter.words)
    return (
        words >= WORDS_SHARED * len(shorter.words)
        and shorter.numbers.total() >= FEWEST_NUMBERS
        and shared >= SHARE_OF_LONGER * len(longer.triples)
        and not re.match(
            r"[-+*/=]|[a-z](?![a-z])", longer.key.partition(shorter.key)[2]
        )  # a formula that goes on
    )


class RowSet:
    """The distinct rows of a data set: what many of them begin and end with belongs to wrappers."""

    def __init__(self, rows: Sequence[Text]) -> None:
        keys = [_NUMBERS.sub("#", text.key) for text in rows]
        self._count = cache(
            lambda before, after: sum(k.startswith(before) and k.endswith(after) for k in keys)
        )
        triples = Counter(triple for text in rows for triple in text.triples)
        self.common = {
            triple
            for triple, count in triples.items()
            if count >= max(FEWEST_ROWS, SHARE * len(rows))
        }

    def has_wrapper(self, before: str, after: str) -> bool:
        """Whether the texts before and after a problem are a wrapper, or nothing but the problem's
        number.
        """
        before, after = _NUMBERS.sub("#", before), _NUMBERS.sub("#", after)
        letters = [sum(map(str.isalpha, side)) for side in (before, after)]
        if not any(letters):
            return not after and not before.strip("()<>*-# ")
        is_label = not after and _LABEL.fullmatch(before)
        if _FORMULA.match(after) or (
            min(letters) == 0 and max(letters) < FEWEST_LETTERS and not is_label
        ):
            return False
        return self._count(before, after) >= FEWEST_ROWS


class BenchmarkIndex:
    """Finds the benchmark problem that a text repeats, the first of several, without comparing it
    with every one.
    """

    def __init__(self, benchmarks: Mapping[str, Sequence[Problem]]) -> None:
        pairs = [(name, problem) for name, problems in benchmarks.items() for problem in problems]
        self._problems = [(name, problem.id, read_text(problem.problem)) for name, problem in pairs]
        self._by_part: defaultdict[str, list[int]] = defaultdict(list)  # of the key
        self._by_triple: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, (*_, text) in enumerate(self._problems):
            self._by_part[text.key[:PART]].append(number)
            for triple in text.triples:
                self._by_triple[triple].append(number)

    def find(self, row: Sequence[Text], rows: RowSet) -> Match | None:
        """The problem that a row (of `read_row`) repeats or contains, or else the likeliest
        near-duplicate.
        """
        for text in row:
            if match := self._find_contained(text, rows):
                return match
        for text in {text.triples: text for text in row}.values():
            shared = Counter(
                number for triple in text.triples for number in self._by_triple.get(triple, ())
            )
            for number, count in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
                name, own_id, other = self._problems[number]
                if nearly_same(text, other) or (
                    count >= SHARED * len(other.triples)
                    and _contains(
                        replace(text, triples=text.triples - (rows.common - other.triples)), other
                    )
                ):
                    return Match(name, own_id, exact=False)
        return None

    def _find_contained(self, row: Text, rows: RowSet) -> Match | None:
        for start in range(max(1, len(row.key) - PART + 1)):
            for number in self._by_part.get(row.key[start : start + PART], ()):
                name, own_id, problem = self._problems[number]
                before, after = row.key[:start], row.key[start + len(problem.key) :]
                is_whole = not re.search(
                    r"[\d.]\0[\d.]", f"{before}\0{problem.key}\0{after}"
                )  # no number is cut
                if (
                    row.key.startswith(problem.key, start)
                    and is_whole
                    and rows.has_wrapper(before, after)
                ):
                    return Match(name, own_id, exact=True, wrapper=(before, after))
        return None
