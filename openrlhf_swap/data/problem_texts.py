"""What two copies of a maths problem have in common: one key, or most of their words.

Two copies have the same key if they differ in spacing, punctuation, case and LaTeX spelling alone.
Two problems are nearly the same if one has the numbers and most of the words of the other. Other
numbers make another problem.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

Triple = tuple[str, ...]
"""Three words, operators or numbers that follow each other."""

# When one text contains the other; docs/use/data.md says how these were chosen.
SHARED = 0.8  # of its triples, and of its words
LONG_TEXT = 40  # triples; in a shorter text a single word can change the question, so there:
WORDS_SHARED = 0.95  # of its words
SHARE_OF_LONGER = 0.5  # of the longer text's triples
FEWEST_NUMBERS = 2

_GOES_ON = re.compile(r"[-+*/=]|[a-z](?![a-z])")  # as a formula does
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


@dataclass(frozen=True)
class Text:
    """What is compared about a problem.

    Attributes:
        key: the problem in one spelling; two copies have equal keys.
        words: distinct words, LaTeX command names and operators.
        numbers: how often each number occurs.
        triples: distinct runs of three words, operators or numbers.

    The last three are without the problem's figures.
    """

    key: str
    words: frozenset[str]
    numbers: Counter[str]
    triples: frozenset[Triple]


def read_text(problem: str, figures: bool = False) -> Text:
    """A problem to compare.

    With `figures` the problem's figures are in its key. They always are if its prose has fewer than
    two numbers, because such prose may ask about other figures.
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


def _tokens(text: str) -> list[str]:
    text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return _TOKEN.findall(text.casefold())


def _join(tokens: Sequence[str]) -> str:
    """Tokens as one text: `a b c` and `abc` are one product, `1 2` and `12` are two numbers."""
    key = "".join(tokens[:1])
    for left, right in pairwise(tokens):
        if _is_number(left) and _is_number(right):
            key += " "
        key += right
    return key


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def read_variants(row: str) -> list[Text]:
    """The texts that may be the problem of a row: the row as it stands, and plainer variants.

    One has single backslashes for doubled ones, one has no tags, and one no short ending. Each is
    there once, and a text with figures a second time, with the figures in its key. The key of a
    problem with fewer than two numbers has its figures, and a wrapper with numbers must not hide
    this.
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


def nearly_same(first: Text, second: Text) -> bool:
    """Whether a problem is another problem with a few words changed or text added."""
    return contains(first, second) or contains(second, first)


def contains(longer: Text, shorter: Text) -> bool:
    """Whether a text has all numbers and most of the words and triples of another.

    In a short text a single word can change the question. So nearly all of a short text's words
    must be there, it must have two numbers, and it must be half of the longer text. A formula at
    its end must not go on in the longer text.
    """
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
