"""Whether an answer equals the reference answer: math-verify, and what it leaves out. Runs in a grading process."""

from __future__ import annotations

import math
import re
from typing import Any

from openrlhf_swap.rollouts.answers import (
    answer_start,
    final_statement,
    last_boxed,
    stated_answer,
    strip_answer,
    without_empty_boxes,
)
from openrlhf_swap.rollouts.notation import canonical

DECIMALS = 6  # to which math-verify compares decimal numbers
DIGITS = 4  # significant digits to which smaller numbers are compared
_BASE = re.compile(r"\d_\{?(\d+)\}?")
_QUANTITY = re.compile(  # a number without a sum or a variable, then a word, perhaps in \text{} and with a power
    r"-?(?:\\[A-Za-z]+|[\d.,{}/!^\s])*[\d}](?:\\[,; ]|[~\s])*(?:\\(?:text|mbox|mathrm)\s*\{)?(?:\\ |[~\s])*"
    r"([A-Za-z]+)\s*\}?(?:\^\{?\d\}?)?"
)
LONGEST_QUANTITY = 60  # characters


def grade(text: str, answer: str, thought_closed: bool = True) -> bool | str:
    """True or False, or the status "no_answer" or "error".

    A number is found in nearly every text. In a response that never closed its thought, only what it states counts. In
    what follows a thought, any number can be correct; one that is not and was not stated is no answer.
    """
    bare = canonical(strip_answer(answer))
    if not bare:
        return "error"
    statement = text if thought_closed else final_statement(text)
    if statement is None:
        return "no_answer"
    text = canonical(without_empty_boxes(statement))
    stated = stated_answer(text)
    # Sentences and other answers that no parser understands can still be compared as they stand.
    if stated is not None and strip_answer(stated) == bare:
        return True
    gold = _parse_answer(bare)
    if not gold:
        return "error"
    predictions = [_parse_response(text)]
    if stated is not None and last_boxed(text) is None:
        predictions.append(_parse_answer(strip_answer(stated)))
    if stated is not None and _other_unit(bare, strip_answer(stated)):
        return False
    if any(_same(gold, prediction) for prediction in predictions if prediction):
        return True
    return False if stated is not None or answer_start(text) is not None else "no_answer"


def is_gradable(answer: str) -> bool:
    """Whether a reference answer can be graded against: it is understood, and given as a response it is correct."""
    bare = canonical(strip_answer(answer))
    gold = _parse_answer(bare)
    return bool(gold) and _same(gold, _parse_response(f"\\boxed{{{bare}}}"))


def _parse_answer(bare: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    if not bare:
        return []
    # Parsed bare, many answers are not recognised as mathematics at all.
    return list(parse(f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None))


def _parse_response(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    rules = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(text, rules, parsing_timeout=None))


def _same(gold: list[Any], prediction: list[Any]) -> bool:
    """Whether two parsed answers are equal. Each holds an expression, if it has one, and the text it was read from."""
    from math_verify import verify

    if _other_base(gold[-1], prediction[-1]) or _is_false(prediction[0]):
        return False
    return bool(
        verify(
            gold,
            prediction,
            float_rounding=_decimals(gold[0], prediction[0]),
            allow_set_relation_comp=True,  # x <= 2 is (-oo, 2]
            timeout_seconds=None,
        )
    )


def _decimals(gold: Any, prediction: Any) -> int:
    """The decimals that hold the significant digits of a small reference answer: 0.0000002 is not 0.0000001."""
    from sympy import Expr, Float

    both = (gold, prediction)
    if not all(isinstance(one, Expr) for one in both) or not any(one.has(Float) for one in both):
        return DECIMALS
    size = abs(gold.evalf(DIGITS))
    if not isinstance(size, Float) or not 1e-300 < size < 1:
        return DECIMALS
    return max(DECIMALS, DIGITS - 1 - math.floor(math.log10(float(size))))


def _is_false(prediction: Any) -> bool:
    """Whether an answer is an equation between different numbers, of which math-verify reads the last: 1 = 2."""
    from sympy import Eq, Float

    if not isinstance(prediction, Eq) or prediction.free_symbols:
        return False
    left, right = prediction.lhs.evalf(), prediction.rhs.evalf()
    rounding = 0.01 if prediction.rhs.has(Float) else 1e-9  # 1/3 = 0.33 is meant well
    return bool(left.is_number and right.is_number and abs(left - right) > rounding * abs(right))


def _other_base(gold: str, prediction: str) -> bool:
    """Whether two numbers are written in different bases, which the parser drops: 1001_2 and 1001_3."""
    bases = [_BASE.search(text) if isinstance(text, str) else None for text in (gold, prediction)]
    return all(bases) and len({base[1] for base in bases if base}) > 1


def _other_unit(gold: str, prediction: str) -> bool:
    """Whether two quantities have different units, which math-verify takes off: 10 m and 10 cm."""
    found = [_QUANTITY.fullmatch(text) for text in (gold, prediction) if len(text) <= LONGEST_QUANTITY]
    words = [quantity[1] for quantity in found if quantity]
    if len(words) < 2 or words[0] == words[1]:
        return False
    from sympy.physics import units

    known = [getattr(units, word, None) for word in words]
    return all(isinstance(unit, units.Quantity) for unit in known) and known[0] != known[1]
