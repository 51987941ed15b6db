r"""One spelling for mathematics that is written in several ways. Standard library only.

The grader reads LaTeX in ASCII. `as_latex` writes Unicode that way, in reference answers and responses alike;
`canonical` also settles what LaTeX itself spells in several ways, for comparisons only.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_FORMS = {"<super>": "^{%s}", "<sub>": "_{%s}", "<wide>": "%s", "<narrow>": "%s", "<font>": "%s"}
_SYMBOLS = {
    **{"\u2212": "-", "°": r"^{\circ}", "π": r"\pi ", "∞": r"\infty ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne "},
    **{"\u00d7": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "±": r"\pm ", "∈": r"\in "},
    **{"\u222a": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "⌊": r"\lfloor ", "⌋": r"\rfloor "},
}
_ROOT = re.compile(r"√\s*(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[A-Za-z]|(?=\{)))")
_GROUP = r"(?:\\[,;: ]|\{,\}|[~\u00a0\u2009\u202f])"  # what may stand between groups of three digits
_GROUPED = re.compile(rf"(?<![\d.])\d{{1,3}}(?:{_GROUP}\d{{3}})+(?!\d)")
_GROUP_MARK = re.compile(_GROUP)
_REPEATING = re.compile(r"(\d{0,20})\.(\d{0,20})\\(?:overline|bar)(?:\{(\d{1,20})\}| ?(\d))")
_SPACE = r"(?:\\[ ,;:]|~|[^\S\n])"
_MIXED = re.compile(  # 8 1/2, unless it stands in a row of numbers or a date
    rf"(?<![\w./^])(?<!\d[^\S\n])([1-9]\d{{0,2}}(?:,\d{{3}}){{1,2}}|[1-9]\d{{0,8}}){_SPACE}{{1,4}}"
    rf"([1-9]\d{{0,2}})/([1-9]\d{{0,2}})(?![\w/]|\^(?!\{{?\\circ)|[.,]\d|{_SPACE}{{0,4}}\d)"
)
_STOP = r"(?<=[\w!%|})\]])(?<!\\right)\."  # `\right.` is a delimiter
_LAST_STOP = re.compile(rf"{_STOP}\Z")
_FULL_STOP = re.compile(rf"{_STOP}(?=\s*\$?\s*\}}|\s*\$\s*\Z)|(?<=[\d}})\]])\.(?=\s*\Z)")
_IMAGINARY = re.compile(r"(?<=\d)i(?![A-Za-z])|\\(?:mathrm|text)\{i\}|\\imath\b")
_COLOR = re.compile(r"\\(?:text)?color(?:\[\w+\])?\{[^{}]*\}")
_MONEY = re.compile(r"\\(?:text|mathrm|mbox)\s?\{\s?(?:\\?(\$)|([€£¥₹]))\s?\}")
_BOLD = r"\\(?:boldsymbol|mathbf|bm)(?![A-Za-z])\s*"
_BOLD_WORDS = re.compile(rf"{_BOLD}(?=\{{[A-Za-z]{{2}}[A-Za-z\s]*\}})")
_BOLD_OR_BRACE = re.compile(rf"({_BOLD}\{{?|(?<!\\)[{{}}])")


def as_latex(text: str) -> str:
    """The text with Unicode's mathematics as LaTeX or ASCII: ¾, x², √2, 90°, full-width digits. Idempotent."""
    if text.isascii():
        return text
    spelled = _ROOT.sub(lambda root: rf"\sqrt{{{root[1] or root[2]}}}" if root[1] or root[2] else r"\sqrt", text)
    return _NOT_ASCII.sub(lambda part: "".join(_spelled(*run) for run in groupby(part[0], _kind)), spelled)


def canonical(text: str) -> str:
    r"""The text as `as_latex` has it, less spellings that the parser does not know.

    Colours, bold type and a full stop at the end of an answer are taken off, digits are joined over `\,`, `{,}` and
    the like, a repeating decimal or a mixed number (8 1/2, which the parser takes for 9/2) becomes a fraction, and the
    i of 2i stands apart: the parser takes it for a variable otherwise.
    """
    plain = _not_bold(_COLOR.sub("", text)).replace(r"\varnothing", r"\emptyset")
    plain = _MONEY.sub(lambda mark: r"\$" if mark[1] else mark[2], plain)
    plain = _GROUPED.sub(lambda number: _GROUP_MARK.sub("", number[0]), plain)
    plain = _MIXED.sub(_as_improper, _REPEATING.sub(_as_fraction, as_latex(plain)))
    return _IMAGINARY.sub(" i", _FULL_STOP.sub("", plain))


def without_full_stop(answer: str) -> str:
    """An answer less the full stop at its end. In a text, `canonical` leaves a sentence its own."""
    return _LAST_STOP.sub("", answer)


def _kind(character: str) -> str:
    """How a character stands for others, in Unicode's words; empty for one that stands for itself."""
    kind = unicodedata.decomposition(character).partition(" ")[0]
    return kind if kind.startswith("<") else ""


def _spelled(kind: str, characters: Iterator[str]) -> str:
    """Characters of one kind as LaTeX or ASCII."""
    run = list(characters)
    if kind == "<fraction>":
        numbers = (unicodedata.normalize("NFKC", character).split("\u2044") for character in run)
        return "".join(f"\\frac{{{above}}}{{{below}}}" for above, below in numbers)
    if kind in _FORMS:
        return _FORMS[kind] % _symbols(unicodedata.normalize("NFKC", "".join(run)))
    return _symbols("".join(run))


def _symbols(text: str) -> str:
    return "".join(_SYMBOLS.get(character, character) for character in text)


def _not_bold(text: str) -> str:
    r"""The text less `\mathbf`, `\boldsymbol` and `\bm`; words become `\text`, as which the parser knows them.

    Their braces go, too, because the parser takes `{42}` for a set; not behind `^`, `_` or a letter (`2^\bm{10}`).
    """
    pieces = _BOLD_OR_BRACE.split(_BOLD_WORDS.sub(r"\\text", text))
    kept: list[bool] = []  # of each brace that is open
    for i in range(1, len(pieces), 2):
        if pieces[i] == "}":
            pieces[i] = "}" if not kept or kept.pop() else ""
        elif pieces[i].endswith("{"):
            before = pieces[i - 1].rstrip()[-1:]
            kept.append(pieces[i] == "{" or before.isalpha() or before in ("^", "_"))
            pieces[i] = "{" if kept[-1] else ""
        else:
            pieces[i] = " "
    return "".join(pieces)


def _as_fraction(number: re.Match[str]) -> str:
    whole, fixed, period = number[1], number[2], number[3] or number[4]
    above = int(whole + fixed + period) - int((whole + fixed) or "0")
    return f"\\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _as_improper(number: re.Match[str]) -> str:
    """A whole number and a proper fraction as one fraction; anything else as it stands."""
    whole, above, below = (int(part.replace(",", "")) for part in number.groups())
    return f"\\frac{{{whole * below + above}}}{{{below}}}" if above < below else number[0]
