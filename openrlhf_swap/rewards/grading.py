"""`math`: whether an answer equals the reference answer, by math-verify and what it leaves out."""

import logging
import re
import unicodedata
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify import verify as verify_parsed
from sympy import And, Eq, Expr, Float, Integral, Limit, Product, Rational, Sum, Symbol
from sympy.core.numbers import Exp1
from sympy.core.relational import Relational
from sympy.physics import units

from openrlhf_swap.rewards import answers, statements
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

DECIMALS = 6  # to which math-verify compares decimal numbers
EXACT_DIGITS = 300  # to which exact numbers are compared
CHOPPED = 1e-14  # math-verify takes what is smaller for nothing
SHARE = 5e-4  # of smaller decimal numbers, by which they may differ: half of the fourth digit
_BASE = re.compile(r"\d_\{?(\d+)\}?")
LONGEST_QUANTITY = 60  # characters
_CURRENCY = re.compile(r"[€£¥₹₽₩₺₴]|\\\$")
_MEASURED = re.compile(  # a number, then words of any language, which may be a unit
    rf"(?s:(?=.{{0,{LONGEST_QUANTITY}}}\Z))"
    r"((?:[A-Za-z]\s*=\s*)?-?(?:\\(?:[dt]?frac|sqrt|pi(?![A-Za-z]))|[\d.,/{}\s])*(?:[\d}]|\\pi(?![A-Za-z])))"
    r"(?:\\[,; ]|[~\s])*(?:\\(?:text|mbox|mathrm)\s*\{\s*)?"
    r"(\\?%|[^\W\d_][^\d=+*<>(),;\\^{}$|]*|\^\{?\\circ\}?\s*(?:\\(?:text|mathrm)\s*\{\s*)?[CF]|[℃℉])\s*\}?(?:\^\{?\d\}?)?"
)
_WORD_OF_UNIT = re.compile(  # not \theta
    r"[\u00c0-\u024f\u0400-\uffff]|\u03bc[A-Za-z]|\u2126|\u03a9|[A-Za-z]{3}|circ|%|\A[kc]?[mf][it]?/(?:s|hr?|min)\b"
)
_OF_NUMBER = re.compile(  # words that make it another number, or a range
    r"\b(?:hundred|thousand|[mb]illion|trillion|dozen|or|and|more|less|fewer|least|most|not)s?\b|[百千万萬億亿]|以[上下内內]"
)
_SPACE = re.compile(r"(?<!\d)\s+|\s+(?!\d)")  # between two digits it separates
_WORD = re.compile(
    r"(?<!\S)(?:[A-Za-z]{3,}(?![A-Za-z(])|[A-Za-z]{2}(?= \d))|[^\W\d_A-Za-z]{2,}"
)  # also "so 2"
_INSIDE = re.compile(
    r"(?<=\$)[^$]+(?=\$)|(?<=\\text\{)[^{}]+(?=\})"
)  # a formula, or text that holds the number, too
_MATHEMATICS = re.compile(r"\$|\\[()\[\]]")
_WAVERING = re.compile(
    r"(?s)\d.*(?:\b(?:maybe|perhaps|possibly|alternatively|otherwise|also|(?:could|might)\s+be|quiz[áà]s?|tal\s+vez|peut-être|vielleicht|talvez|forse)\b"
    r"|\\(?:lor|vee)|\\?\||~|或|または|또는|可能|\(\s*or\b).*\d"
    r"|\d.*\d.*\b(?:unless|if)\b|\A\W*(?:maybe|perhaps|possibly)\b|\?\W*\Z"
)
_NEARLY = re.compile(
    r"\\(?:approx|simeq|sim|cong|equiv|mid|to|(?:left)?[Rr]ightarrow|implies|iff)(?![A-Za-z])|≈"
)
_UNITS = {
    "%": "percent",
    r"\%": "percent",
    "dollar": r"\$",
    "dollars": r"\$",
    "euro": "€",
    "euros": "€",
}
# It warns at every call that its own time limits are off; ours end the process.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether a response states the reference answer.

    Nearly every text contains a number. In a response that never closed its thought, only a stated
    answer counts. After a thought any number can be correct; a wrong number that was not stated as
    the answer is not an answer. A reference answer that cannot be parsed is a ValueError.
    """
    bare = answers.bare_answer(
        answers.canonical(answers.strip_answer(answers.normal_answer(answer)))
    )
    if not bare:
        raise ValueError("the reference answer is empty")
    closed = bool(metadata[THOUGHT_CLOSED])
    statement = statements.final_statement(response, closed)
    if statement is None:
        return NO_ANSWER
    text = answers.canonical(statements.remove_empty_boxes(statement))
    stated = answers.bare_answer(statements.stated_answer(text, closed) or "")
    if not stated:
        if "\\boxed" in text or statements.last_announcement(text):
            return NO_ANSWER  # cut off, or denied
        text = statements.prose_answer(text)
    # Sentences and other answers that no parser understands can still be compared as they stand.
    if stated and _as_written(stated) == _as_written(bare):
        return Verdict(1.0)
    letter = statements.find_letter(stated) if len(stated + bare) > 2 else None
    if letter and re.match(r"[A-Z]\Z|\([A-Z]\)(?!.*\\c[au]p)", statements.unwrap_text(bare)):
        return Verdict(float(letter.upper() == statements.find_letter(bare)))
    if bare.isascii() and not _parse_answer(bare):
        raise ValueError("the reference answer cannot be parsed")
    known = {getattr(units, _unit(answer) or "", None) for answer in (bare, stated)}
    if sum(isinstance(unit, units.Quantity) for unit in known) > 1 or _is_hedge(
        stated
    ):  # 10 m and 10 cm; 3 or 4
        return Verdict(0.0)
    equal = _states(stated, text, bare)
    return Verdict(float(equal)) if equal or stated else NO_ANSWER


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer is words in other letters, or must be understood and be correct when given
    as a response.
    """
    bare = answers.bare_answer(
        answers.canonical(answers.strip_answer(answers.normal_answer(answer)))
    )
    gold = _parse_answer(bare)
    is_good = not bare.isascii() or _are_equal(gold, _parse_response(f"\\boxed{{{bare}}}"))
    return None if is_good else answers.UNPARSABLE_ANSWER


def _as_written(bare: str) -> str:
    r"""An answer less `\text` and spaces, its accents composed, to compare as it stands."""
    plain = _SPACE.sub("", statements.unwrap_text(bare).replace("~", " ").replace("\\ ", " "))
    return unicodedata.normalize("NFC", plain)


def _is_hedge(stated: str) -> bool:
    r"""Whether an answer is none or two: `\ne 4`, `3 \approx 4`. An approximation of a variable or
    a number is one.
    """
    is_short = len(stated) <= LONGEST_QUANTITY
    if is_short and (
        statements.DENIED.match(stated) or _WAVERING.search(statements.unwrap_text(stated))
    ):
        return True
    sides = _NEARLY.split(_MATHEMATICS.sub("", stated))
    if len(sides) > 1 and re.search(r"\d", sides[-1]):
        return any(map(_is_false, _parse_answer("=".join(sides))[:1]))
    return len(sides) > 1


def _states(stated: str, text: str, bare: str) -> bool:
    """Whether a response equals the reference answer, as both stand or without thousands separators
    and units.

    Of a response that states an answer this answer alone is read, so that no response states two.
    """
    is_box = statements.last_boxed(text) is not None
    read = stated or text
    plain = [answers.join_thousands(bare), answers.join_thousands(read)]
    if len({_unit(bare), _unit(stated)} - {None}) < 2:
        plain = [*map(_strip_unit, plain)]
    for answer, response in dict.fromkeys([(bare, read), (plain[0], plain[1])]):
        is_prose = not stated or (
            not is_box and (_MATHEMATICS.search(response) or _WORD.search(response))
        )
        prediction = _parse_response(response if is_prose else f"\\boxed{{{response}}}")
        if _are_equal(_parse_answer(answer), prediction):
            return True
    return False


def _strip_unit(text: str) -> str:
    """The text less signs of currencies, and less a unit that an answer may lack and the parser
    does not take off.
    """
    plain = _CURRENCY.sub("", text)
    words = _MEASURED.fullmatch(plain)
    is_unit = words and _WORD_OF_UNIT.search(words[2]) and not _OF_NUMBER.search(words[2])
    return words[1] if words and is_unit else _INSIDE.sub(lambda part: _strip_unit(part[0]), plain)


def _parse_answer(bare: str) -> list[Any]:
    # Parsed bare, many answers are not recognised as mathematics at all.
    return list(parse(f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None)) if bare else []


def _parse_response(text: str) -> list[Any]:
    rules = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(text, rules, parsing_timeout=None))


def _are_equal(gold: list[Any], prediction: list[Any]) -> bool:
    """Whether two parsed answers are equal. Each holds an expression, if it has one, and the text
    it was read from.
    """
    if not gold or not prediction or _is_false(prediction[0]):
        return False
    texts = [text for text in (gold[-1], prediction[-1]) if isinstance(text, str)]
    if (
        len({base[1] for text in texts if (base := _BASE.search(text))}) > 1
    ):  # which the parser drops: 1001_2, 1001_3
        return False
    if {type(gold[0]), type(prediction[0])} == {
        Exp1,
        Symbol,
    }:  # math-verify takes any letter E for Euler's number
        return False
    # As a set of numbers, x <= 2 is (-oo, 2].
    options = {"float_rounding": DECIMALS, "allow_set_relation_comp": True, "timeout_seconds": None}
    return bool(verify_parsed(gold, prediction, **options)) and not _differ_slightly(
        gold[0], prediction[0]
    )


def _is_false(prediction: Any) -> bool:
    """Whether an answer compares numbers alone, of which math-verify reads the last: 1 = 2, x = 3 =
    4, or 1 < 2.
    """
    if isinstance(prediction, And):
        return any(map(_is_false, prediction.args))
    if not isinstance(prediction, Relational) or prediction.free_symbols:
        return False
    if not isinstance(prediction, Eq):
        return True
    left, right = prediction.lhs.evalf(), prediction.rhs.evalf()
    rounding = 0.01 if prediction.rhs.has(Float) else 1e-9  # 1/3 = 0.33 is meant well
    return bool(left.is_number and right.is_number and abs(left - right) > rounding * abs(right))


def _differ_slightly(gold: Any, prediction: Any) -> bool:
    """Whether two values differ by less than math-verify takes for nothing, or rounds off, but
    relatively by more.

    0.0000002 is not 0.0000001. Values of variables are tried at a place, and lists item by item.
    """
    gold, prediction = (side.rhs if isinstance(side, Eq) else side for side in (gold, prediction))
    if not (isinstance(gold, Expr) and isinstance(prediction, Expr)):
        pairs = zip(getattr(gold, "args", ()), getattr(prediction, "args", ()), strict=False)
        return any(_differ_slightly(*pair) for pair in pairs)
    if gold == prediction or (gold - prediction).has(Integral, Sum, Product, Limit):
        return False
    variables = sorted(gold.free_symbols | prediction.free_symbols, key=str)
    place = {variable: Rational(3 + i, 7) for i, variable in enumerate(variables)}
    left, right = (side.subs(place).evalf(EXACT_DIGITS) for side in (gold, prediction))
    apart = abs(left - right)
    if not apart.is_Float or apart > 10**-DECIMALS:
        return False
    size = max(abs(left), abs(right))
    if gold.has(Float) or prediction.has(Float):
        return bool(apart > SHARE * size and (left or apart < CHOPPED))
    return bool(CHOPPED > apart > Float(10, EXACT_DIGITS) ** (50 - EXACT_DIGITS) * max(1, size))


def _unit(text: str) -> str | None:
    if len(text) <= LONGEST_QUANTITY and (sign := _CURRENCY.search(text)):
        return sign[0]
    words = _MEASURED.fullmatch(text)
    return _UNITS.get(unit := words[2].strip(), unit) if words else None


verify.find_fault = find_fault  # type: ignore[attr-defined]
