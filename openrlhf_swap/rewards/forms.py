r"""One spelling for mathematics: the tables of `forms.yaml`, and the functions its rows name.

`canonical` applies the rows in order, to reference answers and responses alike. What no row names
stays as it stands, and is compared as it stands. A new form is a new row and its test.
"""

import re
import unicodedata
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

Rewrites = list[tuple[re.Pattern[str], Any]]
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NAME_OF_PART = re.compile(r"\{\{([a-z_]+)\}\}")
TABLES: dict[str, Any] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), _LOADER
)


@cache
def words(table: str) -> list[str]:
    """The words of a table, without the names that they stand for."""
    rows = TABLES[table]
    if not isinstance(rows, str):
        rows = " ".join(rows.values())
    return str(rows).split()


@cache
def look_up(table: str) -> dict[str, str]:
    """Each word of a table -> the name that it stands for; a name stands for itself."""
    names: dict[str, str] = {}
    for name, others in TABLES[table].items():
        for word in (name, *others.split(" ")):
            names[word] = name
    return names


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the tables.

    `{{name}}` stands for a part, which may itself have such names, or for the words of a table.
    """
    while _NAME_OF_PART.search(pattern):
        pattern = _NAME_OF_PART.sub(_part, pattern)
    return re.compile(pattern)


def _part(name: re.Match[str]) -> str:
    return TABLES["parts"].get(name[1]) or "|".join(words(name[1]))


def _unicode(match: re.Match[str]) -> str:
    character = match[0]
    signs = look_up("signs")
    if character in signs:
        return signs[character]
    plain = unicodedata.normalize("NFKC", character)
    if "\u2044" in plain:
        return r"\frac{{{}}}{{{}}}".format(*plain.split("\u2044"))
    return signs.get(plain, str(unicodedata.decimal(character, plain)))


def _undressed(match: re.Match[str]) -> str:
    r"""What a font command dresses, as `\text{...}` if it holds words."""
    before = match[1] or ""
    inside = match[3]
    name = inside.strip().lstrip("\\")
    if name in words("functions"):
        return f"{before}\\{name} "
    if PATTERNS.dressed.search(match[0]):
        return f"{before}\\text{{{inside}}}"
    if before:
        return f"{before}{{{inside}}}"
    return f" {inside} "


def _digits(match: re.Match[str]) -> str:
    return re.sub(r"\D", "", match[0])


def _fraction(match: re.Match[str]) -> str:
    r"""A repeating decimal: 0.a\overline{b} is a, and b over and over behind it."""
    fixed = match["fixed"]
    period = re.sub(r"\D", "", match["period"])
    start = match["whole"] + fixed
    above = int(start + period) - int(start or "0")
    return rf"\frac{{{above}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _radians(match: re.Match[str]) -> str:
    return PATTERNS.angle.sub(r"(\1\\cdot\\frac{\\pi}{180})", match[0])


def _stands_for(table: dict[str, str], match: re.Match[str]) -> str:
    return table.get(match[1], match[0])


class _Patterns:
    """The patterns of the table, by name."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        return compiled(TABLES["patterns"][name])


def compile_rows(table: str, **functions: Any) -> Rewrites:
    """The rows of a table: a pattern each, and what its matches become (a text or a function)."""
    rows = []
    for row in TABLES[table]:
        becomes = row.get("to")
        name = row.get("by")
        if name:
            becomes = functions.get(name) or partial(_stands_for, look_up(name))
        rows.append((compiled(row["from"]), becomes))
    return rows


def apply(rows: Rewrites, text: str) -> str:
    """The text with these rows applied in order."""
    for pattern, becomes in rows:
        text = pattern.sub(becomes, text)
    return text


PATTERNS = _Patterns()
_FORMS = compile_rows(
    "forms",
    unicode=_unicode,
    undressed=_undressed,
    digits=_digits,
    fraction=_fraction,
    radians=_radians,
)
_UNICODE = _FORMS[1:7]


def canonical(text: str) -> str:
    """The text with every row of the table applied."""
    return apply(_FORMS, unicodedata.normalize("NFC", text)).strip()


def write_latex(text: str) -> str:
    """The text with Unicode's mathematics as LaTeX or ASCII: ¾, x², √2, 90°, full-width digits."""
    return apply(_UNICODE, text)


def depths(text: str, opening: str = "([{", closing: str = ")]}") -> list[int]:
    """How many brackets are open behind each character."""
    changes = ((one in opening) - (one in closing) for one in text)
    return list(accumulate(changes))


def is_balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions."""
    open_braces = [0, *depths(text, "{", "}")]
    return min(open_braces) == open_braces[-1] == 0
