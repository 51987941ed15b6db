r"""One spelling for mathematics: the tables of `forms.yaml`, and the functions its rows name.

`canonical` applies the rows in order, to reference answers and responses alike. What no row names
stays as it stands, and is compared as it stands. A new form is a new row and its test.
"""

import re
import unicodedata
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TABLES: dict[str, Any] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"), _LOADER
)


@cache
def words(table: str) -> list[str]:
    """The words of a table, but for the names they stand for."""
    rows = TABLES[table]
    if not isinstance(rows, str):
        rows = " ".join(rows.values())
    return str(rows).split()


@cache
def look_up(table: str) -> dict[str, str]:
    """A table as what each of its words stands for; a name stands for itself."""
    rows: dict[str, str] = TABLES[table]
    return {word: name for name, others in rows.items() for word in (name, *others.split(" "))}


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """A pattern of the tables, in which double braces name a part, or a table of words."""

    def part(name: re.Match[str]) -> str:
        return str(TABLES["parts"].get(name[1]) or "|".join(words(name[1])))

    return re.compile(re.sub(r"\{\{([a-z]+)\}\}", part, pattern))


def _unicode(match: re.Match[str]) -> str:
    character = match[0]
    signs = look_up("signs")
    if character in signs:
        return signs[character]
    kind = unicodedata.decomposition(character).partition(" ")[0]
    plain = unicodedata.normalize("NFKC", character)
    if kind == "<fraction>":
        return r"\frac{{{}}}{{{}}}".format(*plain.split("\u2044"))
    if kind in ("<wide>", "<narrow>", "<font>", "<super>", "<sub>"):
        return signs.get(plain, plain)
    return str(unicodedata.decimal(character, character))


def _undressed(match: re.Match[str]) -> str:
    r"""What a font command dresses, as `\text{...}` if it holds words."""
    before = match[1] or ""
    inside = match[3]
    name = inside.strip().lstrip("\\")
    if name in words("functions"):
        return f"{before}{look_up('commands').get(name, chr(92) + name)} "
    is_spaced = match[2] == "text" and inside != name and re.search("[A-Za-z]", inside)
    if is_spaced or PATTERNS.a_word.search(re.sub(r"\\[A-Za-z]+", "", inside)):
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


_FUNCTIONS = {
    "unicode": _unicode,
    "undressed": _undressed,
    "digits": _digits,
    "fraction": _fraction,
    "radians": _radians,
}


def _replacement(form: dict[str, str]) -> Any:
    """What a row's matches become: a text, or a function of the match."""
    name = form.get("by")
    if name in TABLES:
        table = look_up(name)
        return lambda match: table.get(match[1], match[0])
    if name:
        return _FUNCTIONS[name]
    return form["to"]


class _Patterns:
    """The patterns of the table, by name."""

    def __getattr__(self, name: str) -> re.Pattern[str]:
        return compiled(TABLES["patterns"][name])


PATTERNS = _Patterns()
_FORMS = [(compiled(form["from"]), _replacement(form)) for form in TABLES["forms"]]
_UNICODE = slice(1, 7)  # the rows that write Unicode as LaTeX


def canonical(text: str) -> str:
    """The text with every row of the table applied, less braces around all of it."""
    text = unicodedata.normalize("NFC", text)
    for pattern, becomes in _FORMS:
        text = pattern.sub(becomes, text)
    text = text.strip()
    while text.startswith("{") and text.endswith("}") and is_balanced(text[1:-1]):
        text = text[1:-1].strip()
    return text


def write_latex(text: str) -> str:
    """The text with Unicode's mathematics as LaTeX or ASCII: ¾, x², √2, 90°, full-width digits."""
    for pattern, becomes in _FORMS[_UNICODE]:
        text = pattern.sub(becomes, text)
    return text


def depths(
    text: str,
    opening: str = "([{",
    closing: str = ")]}",
) -> list[int]:
    """How many brackets are open behind each character."""
    return [*accumulate((one in opening) - (one in closing) for one in text)]


def is_balanced(text: str) -> bool:
    """Whether every brace is closed by a later one: `a}{b` inside a wrapper is two expressions."""
    open_braces = [0, *depths(text, "{", "}")]
    return min(open_braces) == open_braces[-1] == 0
