"""Find problems that are the same or nearly: spacing, punctuation and LaTeX spelling may differ, numbers may not.

So may the text around a problem: a template, an instruction in any language, a number, a heading, tags, JSON.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from openrlhf_swap.data.formats import Problem

# When one text counts as containing the other; docs/use/data.md says how these were chosen.
SHARED = 0.8
LONG_TEXT = 40  # triples; in a shorter text a single word can change the question, so there:
WORDS_SHARED = 0.95
SHARE_OF_LONGER = 0.5
FEWEST_NUMBERS = 2

# When the text around a benchmark problem that a row contains is a wrapper, and not a part of another problem.
FEWEST_ROWS = 3  # of the set, which begin and end with the same text
FEWEST_LETTERS = 4  # where it is on one side only: many problems end with "+ 2x"
SHARE = 0.1  # of the rows with the same triple, for it to belong to wrappers
PART = 8  # characters of the keys by which contained problems are looked up; shorter problems are compared as a whole

_ESCAPED = re.compile(r"\\\\|\\n(?![a-z])|\\u[0-9a-f]{4}|\\\"")
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4}|[\\\"'nt/])")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_NUMBERS = re.compile(r"[\d.]+")
_NUMBER_CUT = re.compile(r"[\d.]\0[\d.]")
_FORMULA = re.compile(r"[-+*/=](?![a-z]{2})")  # but /no_think is none
_LABEL = re.compile(r"\(?[a-z]{1,3}#?\)?")  # "Q17)"
_FORMULA_GOES_ON = re.compile(r"[-+*/=]|[a-z](?![a-z])")
_QUOTATION = re.compile(r"^[ \t]*>+[ \t]?", re.MULTILINE)  # Markdown's
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)|!\[[^\]]*\]\([^)]*\)", re.DOTALL | re.IGNORECASE)
# What two copies of a problem may write differently, in the order of replacement.
_REWRITES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
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
]
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[^\W\d_]+|!=|[-+*/=<>|()]")


@dataclass(frozen=True)
class Text:
    """What is compared about a problem; figures count in the key alone."""

    key: str  # equal for two texts that differ only in spacing, punctuation, case and LaTeX spelling
    words: frozenset[str]  # distinct words, LaTeX command names and operators
    numbers: Counter[str]  # how often each number occurs
    triples: frozenset[tuple[str, ...]]  # distinct runs of three words, operators or numbers


class Match(NamedTuple):
    """The benchmark problem that a row repeats, word for word or nearly, and the keys of the text before and after."""

    benchmark: str
    id: str
    exact: bool
    wrapper: tuple[str, str] = ("", "")


def read_text(problem: str, figures: bool = False) -> Text:
    """Normalise a problem for comparison.

    The key includes figures if the prose has fewer than two numbers: the same words may ask about different figures.
    """
    prose = _tokens(_FIGURE.sub(" ", problem))
    numbers = Counter(filter(_is_number, prose))
    tokens = prose if numbers.total() >= FEWEST_NUMBERS and not figures else _tokens(problem)
    # `a b c` and `abc` are the same product, `1 2` and `12` are not the same number.
    gaps = [" " if _is_number(left) and _is_number(right) else "" for left, right in pairwise(tokens)]
    return Text(
        key="".join(token + gap for token, gap in zip(tokens, [*gaps, ""], strict=False)),
        words=frozenset(token for token in prose if not _is_number(token)),
        numbers=numbers,
        triples=frozenset(zip(prose, prose[1:], prose[2:], strict=False)),
    )


def read_row(row: str) -> list[Text]:
    """A row as it stands and, where this differs, as a text in JSON, HTML or a quotation.

    Each also with its figures in the key: a wrapper's numbers leave them out, though the problem alone may have fewer
    than two.
    """
    from_json = _ESCAPE.sub(_unescape, row) if _ESCAPED.search(row) else row
    twice = _ESCAPE.sub(_unescape, from_json) if from_json != row else row  # JSON in JSON
    texts = dict.fromkeys((row, from_json, twice, html.unescape(_TAG.sub(" ", row)), _QUOTATION.sub("", row)))
    return [read_text(text, figures) for text in texts for figures in (False, True)[: 1 + bool(_FIGURE.search(text))]]


def _unescape(found: re.Match[str]) -> str:
    return chr(int(found[1][1:], 16)) if len(found[1]) > 1 else found[1].replace("n", " ").replace("t", " ")


def _tokens(text: str) -> list[str]:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    for pattern, replacement in _REWRITES:
        text = pattern.sub(replacement, text)
    return _TOKEN.findall(text.casefold())


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def nearly_same(first: Text, second: Text) -> bool:
    """Whether a problem is another problem with a few words changed or text added.

    All numbers, 80% of the words and 80% of the triples of one text must occur in the other text. If it has fewer than
    40 triples, 95% of its words must occur there, it needs at least two numbers, and the shared triples must be at
    least half of the longer text's, where no formula at its end may go on. Other numbers make another problem.
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
        and not _FORMULA_GOES_ON.match(longer.key.partition(shorter.key)[2])
    )


class RowSet:
    """The rows of a data set: what many of them begin and end with belongs to wrappers."""

    def __init__(self, rows: Sequence[Text]) -> None:
        """Takes the distinct rows."""
        self._keys = [_NUMBERS.sub("#", text.key) for text in rows]
        self._counts: dict[tuple[str, str], int] = {}
        triples = Counter(triple for text in rows for triple in text.triples)
        self.common = {triple for triple, count in triples.items() if count >= max(FEWEST_ROWS, SHARE * len(rows))}

    def has_wrapper(self, before: str, after: str) -> bool:
        """Whether the texts before and after a problem are a wrapper, or nothing but the problem's number."""
        before, after = _NUMBERS.sub("#", before), _NUMBERS.sub("#", after)
        letters = [sum(map(str.isalpha, side)) for side in (before, after)]
        if not any(letters):
            return not after and not before.strip("()<>*-# ")
        is_label = not after and _LABEL.fullmatch(before)
        if _FORMULA.match(after) or (min(letters) == 0 and max(letters) < FEWEST_LETTERS and not is_label):
            return False
        if (before, after) not in self._counts:
            self._counts[before, after] = sum(key.startswith(before) and key.endswith(after) for key in self._keys)
        return self._counts[before, after] >= FEWEST_ROWS


class BenchmarkIndex:
    """Finds the benchmark problem that a text repeats, without comparing it with every one."""

    def __init__(self, benchmarks: Mapping[str, Sequence[Problem]]) -> None:
        """Takes the problems of each benchmark; the first of several matches is reported."""
        self._problems: list[tuple[str, str, Text]] = []
        self._by_part: defaultdict[str, list[int]] = defaultdict(list)  # of the key
        self._by_triple: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for name, problems in benchmarks.items():
            for problem in problems:
                text, number = read_text(problem.problem), len(self._problems)
                self._problems.append((name, problem.id, text))
                self._by_part[text.key[:PART]].append(number)
                for triple in text.triples:
                    self._by_triple[triple].append(number)

    def find(self, row: Sequence[Text], rows: RowSet) -> Match | None:
        """The problem that a row repeats or contains, or else the near-duplicate that shares the most triples.

        `row` is what `read_row` returns; `rows`, those of the whole data set, tell wrappers from parts of problems.
        """
        for text in row:
            if match := self._find_contained(text, rows):
                return match
        for text in {text.triples: text for text in row}.values():
            shared = Counter(number for triple in text.triples for number in self._by_triple.get(triple, ()))
            for number, count in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
                name, own_id, other = self._problems[number]
                if nearly_same(text, other) or (
                    count >= SHARED * len(other.triples)
                    and _contains(replace(text, triples=text.triples - (rows.common - other.triples)), other)
                ):
                    return Match(name, own_id, exact=False)
        return None

    def _find_contained(self, row: Text, rows: RowSet) -> Match | None:
        for start in range(max(1, len(row.key) - PART + 1)):
            for number in self._by_part.get(row.key[start : start + PART], ()):
                name, own_id, problem = self._problems[number]
                before, after = row.key[:start], row.key[start + len(problem.key) :]
                is_whole = not _NUMBER_CUT.search(f"{before}\0{problem.key}\0{after}")
                if row.key.startswith(problem.key, start) and is_whole and rows.has_wrapper(before, after):
                    return Match(name, own_id, exact=True, wrapper=(before, after))
        return None
