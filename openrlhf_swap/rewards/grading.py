"""`math`: whether an answer equals the reference answer, by math-verify and what it leaves out."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from typing import Any

from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse
from math_verify import verify as verify_parsed
from sympy import Eq, Expr, Float
from sympy.physics import units

from openrlhf_swap.rewards.answers import (
    answer_start,
    canonical,
    final_statement,
    last_boxed,
    remove_empty_boxes,
    stated_answer,
    strip_answer,
    strip_full_stop,
)
from openrlhf_swap.rewards.golds import UNPARSABLE_ANSWER
from openrlhf_swap.rewards.verifiers import NO_ANSWER, THOUGHT_CLOSED, Metadata, Verdict

DECIMALS = 6  # to which math-verify compares decimal numbers
DIGITS = 4  # significant digits to which smaller numbers are compared
_BASE = re.compile(r"\d_\{?(\d+)\}?")
_QUANTITY = re.compile(  # a number without a sum or a variable, then a unit, perhaps in \text{} and with a power
    r"(?:[A-Za-z]\s*=\s*)?-?(?:\\[A-Za-z]+|[\d.,{}/!^\s])*[\d}](?:\\[,; ]|[~\s])*"
    r"(?:\\(?:text|mbox|mathrm)\s*\{)?(?:\\ |[~\s])*(\\?%|[A-Za-z][A-Za-z/ ]*)\s*\}?(?:\^\{?\d\}?)?"
)
LONGEST_QUANTITY = 60  # characters
_THOUSANDS = re.compile(  # 1,234 outside brackets, in which a comma separates: (1,234) is a point
    r"(?<!\\)[(\[][^()\[\]]{0,200}[)\]]|\\\{.{0,200}?\\\}|\\langle.{0,200}?\\rangle"
    r"|(?<![\d,.])([1-9]\d{0,2}(?:,(?:\\!\s*)?\d{3})+)(?!\d|,\d)"
)
_COMMA = re.compile(r",(?:\\!\s*)?")
_CURRENCY = re.compile(r"[€£¥₹]|\\\$")
_UNIT = re.compile(  # after a number, be it a fraction or a mixed number, that is all of an answer; not after a sum
    r"((?:\A|\\(?:boxed|text)\s*\{|[=$]|\\[(\[])(?:\s*-)?(?:\\[dt]?frac|[\d.,/{}\s])*[\d}])(?:\\ |\s)*"
    r"(?:\\?%|\\text\s*\{\s*percent\s*\}|percent"
    r"|(?<=\s)(?:dollars?|euros?|people|persons?|(?:m|km|mi|ft|cm)/(?:s|h|hr|min)))(?=\s*(?:\}|\$|\\[)\]]|\Z))"
)
_UNITS = {"%": "percent", r"\%": "percent", "dollar": r"\$", "dollars": r"\$", "euro": "€", "euros": "€"}


# It warns at every call that its own time limits are off; ours end the process.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def verify(problem: str, answer: str, response: str, metadata: Metadata) -> Verdict:
    """Whether a response states the reference answer.

    Nearly every text contains a number. In a response that never closed its thought, only a stated answer counts.
    After a thought any number can be correct; a wrong number that was not stated as the answer is not an answer.

    Raises:
        ValueError: for a reference answer that cannot be parsed.
    """
    bare = _bare(canonical(strip_answer(answer)))
    if not bare:
        raise ValueError("the reference answer is empty")
    statement = response if metadata[THOUGHT_CLOSED] else final_statement(response)
    if statement is None:
        return NO_ANSWER
    text = canonical(remove_empty_boxes(statement))
    stated = _bare(stated_answer(text) or "")
    # Sentences and other answers that no parser understands can still be compared as they stand.
    if stated == bare:
        return Verdict(1.0)
    if not _parse_answer(bare):
        raise ValueError("the reference answer cannot be parsed")
    if _differ_in_unit(bare, stated):
        return Verdict(0.0)
    if any(_are_equal(gold, prediction) for gold, prediction in _readings(bare, text) if gold and prediction):
        return Verdict(1.0)
    return Verdict(0.0) if stated or answer_start(text) is not None else NO_ANSWER


def find_fault(answer: str, metadata: Metadata) -> str | None:
    """A reference answer must be understood, and be correct when it is given as a response."""
    bare = _bare(canonical(strip_answer(answer)))
    gold = _parse_answer(bare)
    return None if gold and _are_equal(gold, _parse_response(f"\\boxed{{{bare}}}")) else UNPARSABLE_ANSWER


def _bare(answer: str) -> str:
    return strip_full_stop(strip_answer(answer))


def _readings(bare: str, text: str) -> Iterator[tuple[list[Any], list[Any]]]:
    """Reference answer and response, parsed, in each way to read both: as they stand first."""
    stated = _bare(stated_answer(text) or "")
    ways = [(bare, text), (_joined(bare), _joined(text))]
    if len({_unit(bare), _unit(stated)} - {None}) < 2:
        ways.append((_strip_unit(_joined(bare)), _strip_unit(_joined(text))))
    for answer, response in dict.fromkeys(ways):
        gold = _parse_answer(answer)
        yield gold, _parse_response(response)
        if last_boxed(response) is None:
            yield gold, _parse_answer(_bare(stated_answer(response) or ""))


def _joined(text: str) -> str:
    """The text with 1234 for 1,234, unless it stands in brackets."""
    return _THOUSANDS.sub(lambda match: _COMMA.sub("", match[0]) if match[1] else match[0], text)


def _strip_unit(text: str) -> str:
    """The text less signs and units that an answer may lack and that the parser does not take off."""
    return _UNIT.sub(r"\1", _CURRENCY.sub("", text))


def _parse_answer(bare: str) -> list[Any]:
    if not bare:
        return []
    # Parsed bare, many answers are not recognised as mathematics at all.
    return list(parse(f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None))


def _parse_response(text: str) -> list[Any]:
    rules = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(text, rules, parsing_timeout=None))


def _are_equal(gold: list[Any], prediction: list[Any]) -> bool:
    """Whether two parsed answers are equal. Each holds an expression, if it has one, and the text it was read from."""
    if _differ_in_base(gold[-1], prediction[-1]) or _is_false(prediction[0]):
        return False
    return bool(
        verify_parsed(
            gold,
            prediction,
            float_rounding=_decimals(gold[0], prediction[0]),
            allow_set_relation_comp=True,  # x <= 2 is (-oo, 2]
            timeout_seconds=None,
        )
    )


def _decimals(gold: Any, prediction: Any) -> int:
    """The decimals that hold the significant digits of a small reference answer: 0.0000002 is not 0.0000001."""
    if not (isinstance(gold, Expr) and isinstance(prediction, Expr)) or not (gold.has(Float) or prediction.has(Float)):
        return DECIMALS
    size = abs(gold.evalf(DIGITS))
    if not isinstance(size, Float) or not 1e-300 < size < 1:
        return DECIMALS
    return max(DECIMALS, DIGITS - 1 - math.floor(math.log10(float(size))))


def _is_false(prediction: Any) -> bool:
    """Whether an answer is an equation between different numbers, of which math-verify reads the last: 1 = 2."""
    if not isinstance(prediction, Eq) or prediction.free_symbols:
        return False
    left, right = prediction.lhs.evalf(), prediction.rhs.evalf()
    rounding = 0.01 if prediction.rhs.has(Float) else 1e-9  # 1/3 = 0.33 is meant well
    return bool(left.is_number and right.is_number and abs(left - right) > rounding * abs(right))


def _differ_in_base(gold: str, prediction: str) -> bool:
    """Whether two numbers are written in different bases, which the parser drops: 1001_2 and 1001_3."""
    bases = [_BASE.search(text) if isinstance(text, str) else None for text in (gold, prediction)]
    return all(bases) and len({base[1] for base in bases if base}) > 1


def _differ_in_unit(gold: str, prediction: str) -> bool:
    """Whether two quantities have different units, which math-verify takes off: 10 m and 10 cm."""
    known = [getattr(units, _unit(text) or "", None) for text in (gold, prediction)]
    return all(isinstance(unit, units.Quantity) for unit in known) and known[0] != known[1]


def _unit(text: str) -> str | None:
    """The unit of a quantity; None for any other text."""
    if len(text) > LONGEST_QUANTITY:
        return None
    if sign := _CURRENCY.search(text):
        return sign[0]
    quantity = _QUANTITY.fullmatch(text)
    return _UNITS.get(unit := quantity[1].strip(), unit) if quantity else None


verify.find_fault = find_fault  # type: ignore[attr-defined]
