"""Which rows of a data set of maths problems go into a prompt set, and why the others do not.

Problems are the same or nearly if spacing, punctuation and LaTeX spelling differ, or the text
around them: a template, an instruction in any language, a number, a heading, tags. Other numbers
make another problem.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter

from tqdm import tqdm

from openrlhf_swap.data.benchmarks import Problem
from openrlhf_swap.data.chats import EMPTY_PROBLEM
from openrlhf_swap.data.references import STATED_ANSWER, find_faults, states_answer
from openrlhf_swap.files import Row
from openrlhf_swap.rewards.verifiers import MATH, Reference

SAME_AS_BENCHMARK = "a benchmark problem"
NEAR_BENCHMARK = "a near-duplicate of a benchmark problem"
DUPLICATE = "the same problem as an earlier row"

Reason = Row
"""Why a row is dropped: `reason`, and the benchmark problem or earlier row that it repeats."""

# When one text counts as containing the other; docs/use/data.md says how these were chosen.
SHARED = 0.8
LONG_TEXT = 40  # triples; in a shorter text a single word can change the question, so there:
WORDS_SHARED = 0.95
SHARE_OF_LONGER = 0.5
FEWEST_NUMBERS = 2

# When the text around a benchmark problem that a row contains is a wrapper, and not a part of
# another problem.
FEWEST_ROWS = 3  # of the set, which begin and end with the same text
FEWEST_LETTERS = 4  # of what follows the problem, if anything does: many problems end with "2x"
SHARE = 0.1  # of the rows with the same triple, for it to belong to wrappers
# Characters of the keys by which contained problems are looked up; shorter problems are compared as
# a whole.
PART = 8

_NUMBERS = re.compile(r"[\d.]+")
_FORMULA = re.compile(r"[-+*/=](?![a-z]{2})")  # but /no_think is none
_GOES_ON = re.compile(r"[-+*/=]|[a-z](?![a-z])")  # as a formula does
_CUT_NUMBER = re.compile(r"[\d.]\0[\d.]")
_TAG = re.compile(
    r"</?[A-Za-z][^<>]*>|\[/?(?:b|i|u|url|hide|color|size|quote|center|list|math)\b[^\]]*\]"
)
_FIGURE = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)|!\[[^\]]*\]\([^)]*\)", re.DOTALL | re.IGNORECASE)
_ENDING = re.compile(r"\s(?:[A-Z][a-z]{0,2}\s*:|#\s*\d+|\(\d+\))\s*\Z")  # "A:", "#17"
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
# What two copies of a problem may write differently, in the order of replacement.
_REWRITES = (
    (r"\\\\|\\(?:begin|end)\s*\{[^}]*\}", " "),
    (r"\\[,;:!> ()\[\]]|[$~]", " "),
    (
        r"\\(?:left|right|[bB]igg?[lrm]?|(?:display|text)style|limits|q?quad|operatorname|text"
        r"|text(?:bf|it|rm)|math(?:rm|bf|it|sf)|mbox|hbox|emph|boldsymbol|bf|rm|it)(?![A-Za-z])\*?",
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
# Special tokens of chat templates, such as <|im_start|>; DeepSeek's have the wide bar.
SPECIAL = re.compile(
    "<[|\uff5c][^|<>]{2,40}[|\uff5c]>|</?s>|<bos>|<eos>|\\[gMASK\\]|<sop>|\\[/?INST\\]"
    "|<(?:start|end)_of_turn>"
)


def find_reasons(
    problems: Sequence[str],
    references: Sequence[Reference],
    index: BenchmarkIndex | None,
    grader: str = MATH,
    known: Sequence[str | None] | None = None,
) -> list[Reason | None]:
    """Why each row is dropped, None for a row that is kept.

    Of rows with the same problem the first usable one is kept. A reason of the problem goes before
    one of the answer. `known` are faults of chats, one for each row.
    """
    # A set may repeat a problem 100 times.
    distinct = tqdm(dict.fromkeys(problems), desc="[prepare] reading", unit="problem")
    texts = {problem: read_row(problem) for problem in distinct}
    repeated = _find_repeated(texts, index) if index else {}
    reasons: list[Reason | None] = []
    for number, problem in enumerate(problems):
        fault = known[number] if known else None
        if not problem.strip():
            fault = fault or EMPTY_PROBLEM
        reasons.append({"reason": fault} if fault else repeated.get(problem))
    left = [number for number, reason in enumerate(reasons) if reason is None]
    faults = find_faults([references[number] for number in left], grader, "prepare")
    first: dict[str, int] = {}
    for number, fault in zip(left, faults, strict=True):
        problem = problems[number]
        key = texts[problem][0].key
        if not fault and states_answer(problem, references[number].answer):
            fault = STATED_ANSWER
        if fault:
            reasons[number] = {"reason": fault}
        elif key in first:
            reasons[number] = {"reason": DUPLICATE, "duplicate_of": first[key]}
        else:
            first[key] = number
    return reasons


def _find_repeated(texts: Mapping[str, Sequence[Text]], index: BenchmarkIndex) -> dict[str, Reason]:
    """The problems that repeat one of a benchmark."""
    rows = RowSet(list(texts.values()))
    repeated = {}
    for problem, row in tqdm(texts.items(), desc="[prepare] comparing", unit="problem"):
        reason = index.find(row, rows)
        if reason:
            repeated[problem] = reason
    return repeated


@dataclass(frozen=True)
class Text:
    """What is compared about a problem; its figures count in the key alone."""

    # Equal for two texts that differ only in spacing, punctuation, case and LaTeX spelling.
    key: str
    words: frozenset[str]  # distinct words, LaTeX command names and operators
    numbers: Counter[str]  # how often each number occurs
    triples: frozenset[tuple[str, ...]]  # distinct runs of three words, operators or numbers


def read_text(problem: str, figures: bool = False) -> Text:
    """A problem to compare.

    The figures of a problem are in its key with `figures`, or if its prose has fewer than two
    numbers: such prose may ask about other figures.
    """
    prose = _tokens(_FIGURE.sub(" ", problem))
    numbers = Counter(filter(_is_number, prose))
    tokens = prose
    if figures or numbers.total() < FEWEST_NUMBERS:
        tokens = _tokens(problem)
    triples = zip(prose, prose[1:], prose[2:], strict=False)
    return Text(
        key=_join(tokens),
        words=frozenset(prose) - numbers.keys(),
        numbers=numbers,
        triples=frozenset(triples),
    )


def _join(tokens: Sequence[str]) -> str:
    """Tokens as one text: `a b c` and `abc` are one product, `1 2` and `12` are two numbers."""
    key = "".join(tokens[:1])
    for left, right in pairwise(tokens):
        if _is_number(left) and _is_number(right):
            key += " "
        key += right
    return key


def read_row(row: str) -> list[Text]:
    """A row as it stands and, where this differs, without what may be around or in its problem.

    That is doubled backslashes, tags, and a short ending. Each is there with its figures, too: a
    wrapper's numbers leave figures out of the key, though the problem alone may have fewer than two
    numbers.
    """
    variants = (
        row,
        row.replace("\\\\", "\\"),
        html.unescape(_TAG.sub(" ", row)),
        _ENDING.sub("", row),
    )
    texts = []
    for text in dict.fromkeys(variants):
        texts.append(read_text(text))
        if _FIGURE.search(text):
            texts.append(read_text(text, figures=True))
    return texts


def _tokens(text: str) -> list[str]:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
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
    if not shorter.numbers <= longer.numbers:
        return False
    shared = len(longer.triples & shorter.triples)
    if shared < SHARED * len(shorter.triples):
        return False
    words = len(longer.words & shorter.words)
    if len(shorter.triples) >= LONG_TEXT:
        return words >= SHARED * len(shorter.words)
    behind = longer.key.partition(shorter.key)[2]
    return (
        words >= WORDS_SHARED * len(shorter.words)
        and shorter.numbers.total() >= FEWEST_NUMBERS
        and shared >= SHARE_OF_LONGER * len(longer.triples)
        and not _GOES_ON.match(behind)
    )


class RowSet:
    """The distinct rows of a data set: what many of them begin and end with belongs to wrappers."""

    def __init__(self, rows: Sequence[Sequence[Text]]) -> None:
        self._keys: list[set[str]] = []
        self._counts: dict[tuple[str, str], int] = {}
        triples: Counter[tuple[str, ...]] = Counter()
        for row in rows:
            self._keys.append({_NUMBERS.sub("#", text.key) for text in row})
            triples.update(row[0].triples)
        fewest = max(FEWEST_ROWS, SHARE * len(rows))
        self.common = {triple for triple, count in triples.items() if count >= fewest}

    def has_wrapper(self, before: str, after: str) -> bool:
        """Whether the texts before and after a problem are a wrapper, or the problem's number."""
        before = _NUMBERS.sub("#", before).rstrip()  # a space if a number follows
        after = _NUMBERS.sub("#", after)
        letters_after = sum(map(str.isalpha, after))
        if not letters_after and not any(map(str.isalpha, before)):
            return not after.strip("*") and not before.strip("()<>*-# ")
        if _FORMULA.match(after) or 0 < letters_after < FEWEST_LETTERS:
            return False
        return self._count(before, after) >= FEWEST_ROWS

    def _count(self, before: str, after: str) -> int:
        """How many rows begin and end with these texts."""
        if (before, after) not in self._counts:
            found = 0
            for keys in self._keys:
                found += any(key.startswith(before) and key.endswith(after) for key in keys)
            self._counts[before, after] = found
        return self._counts[before, after]


class BenchmarkIndex:
    """Finds the benchmark problem that a text repeats, without comparing it with every one."""

    def __init__(self, benchmarks: Mapping[str, Iterable[Problem]]) -> None:
        self._problems: list[tuple[str, str, Text]] = []
        self._by_part: defaultdict[str, list[int]] = defaultdict(list)  # of the key
        self._by_triple: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
        for name, problems in benchmarks.items():
            for problem in problems:
                self._add(name, problem.id, read_text(problem.problem))

    def _add(
        self,
        name: str,
        own_id: str,
        text: Text,
    ) -> None:
        number = len(self._problems)
        self._problems.append((name, own_id, text))
        self._by_part[text.key[:PART]].append(number)
        for triple in text.triples:
            self._by_triple[triple].append(number)

    def find(self, row: Sequence[Text], rows: RowSet) -> Reason | None:
        """The first problem that a row (of `read_row`) repeats or contains, as a reason to drop it.

        Without one it is the likeliest of those that the row nearly repeats; None for none.
        """
        for text in row:
            for number in self._contained(text, rows):
                return self._reason(number, SAME_AS_BENCHMARK)
        distinct = {text.triples: text for text in row}
        for text in distinct.values():
            for number, shared in self._likeliest(text):
                problem = self._problems[number][2]
                if nearly_same(text, problem) or (
                    shared >= SHARED * len(problem.triples)
                    and _contains(_without_wrapper(text, problem, rows), problem)
                ):
                    return self._reason(number, NEAR_BENCHMARK)
        return None

    def _reason(self, number: int, reason: str) -> Reason:
        benchmark, own_id, _ = self._problems[number]
        return {"reason": reason, "benchmark": benchmark, "benchmark_id": own_id}

    def _likeliest(self, text: Text) -> list[tuple[int, int]]:
        """The numbers of problems that share triples with a text, and how many: most first."""
        shared: Counter[int] = Counter()
        for triple in text.triples:
            shared.update(self._by_triple.get(triple, ()))
        return sorted(sorted(shared.items()), key=itemgetter(1), reverse=True)

    def _contained(self, row: Text, rows: RowSet) -> Iterator[int]:
        """The numbers of the problems that a row has in a wrapper."""
        last = max(0, len(row.key) - PART)
        for start in range(last + 1):
            part = row.key[start : start + PART]
            for number in self._by_part.get(part, ()):
                key = self._problems[number][2].key
                if not row.key.startswith(key, start):
                    continue
                before = row.key[:start]
                after = row.key[start + len(key) :]
                if _CUT_NUMBER.search(f"{before}\0{key}\0{after}"):
                    continue
                if after == key:  # the problem stands there twice
                    after = ""
                if rows.has_wrapper(before, after):
                    yield number


def _without_wrapper(
    text: Text,
    problem: Text,
    rows: RowSet,
) -> Text:
    """A text without the triples of wrappers, but with those that the problem has, too."""
    of_wrappers = rows.common - problem.triples
    return replace(text, triples=text.triples - of_wrappers)
