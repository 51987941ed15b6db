r"""Whether two pieces of mathematics are equal: math-verify, and what it loses on the way.

math-verify makes all letters small, drops primes and dots, and takes values that differ by less
than 1e-14 for equal. So its parser is called with capital letters kept, what it would drop is not
given to it, and numbers are compared exactly where both are exact.
"""

import logging
import re
from functools import lru_cache
from typing import Any

from latex2sympy2_extended.latex2sympy2 import (
    ConversionConfig,
    NormalizationConfig,
    latex2sympy,
    normalize_latex,
)
from math_verify import verify
from math_verify.grader import should_treat_as_complex
from sympy import (
    And,
    Dummy,
    Eq,
    Expr,
    Float,
    I,
    Pow,
    Rational,
    Symbol,
    Tuple,
    Union,
    log,
    nan,
    oo,
    zoo,
)
from sympy.core.relational import Relational, _Inequality

from openrlhf_swap.rewards.forms import PATTERNS, depths

COMPARED_DECIMALS = 6  # to which decimal numbers are compared
RELATIVE_TOLERANCE = 5e-4  # by which small decimal numbers may differ: half of the fourth digit
EXACT_DIGITS = 300  # to which numbers with roots are compared
DEEPEST_BRACKETS = 30  # brackets inside of brackets in an expression that is parsed
_SPELLING = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none"
)
_CONDITIONS = (Relational, And)
# It warns at every call that its own time limits are off; ours end the process.
logging.getLogger("math_verify").setLevel(logging.ERROR)


@lru_cache(maxsize=64)
def parse(text: str) -> Any:
    """The value of an expression as sympy has it; None for what the parser does not know."""
    if r"\lor" in text:
        return _parse_union(text)
    plain = PATTERNS.primes.sub(lambda letter: f"{letter[1]}_{{9{len(letter[2])}}}", text)
    if not plain or max(depths(plain)) > DEEPEST_BRACKETS or PATTERNS.not_parsed.search(plain):
        return None
    try:
        spelled = normalize_latex(plain, _SPELLING)
        is_real = not should_treat_as_complex(spelled)
        value = latex2sympy(
            spelled,
            is_real=is_real,
            convert_degrees=False,
            normalization_config=None,
            conversion_config=ConversionConfig(lowercase_symbols=False),
        )
        return value if is_real else value.subs(Symbol("i", real=False), I)
    except Exception:  # noqa: BLE001 (a parser that raises whatever it likes)
        return None


def _parse_union(text: str) -> Any:
    """The set of the numbers that one of several conditions on one variable allows."""
    if len(letters_of(text)) != 1:
        return None
    try:
        return Union(*[parse(part).as_set() for part in text.split(r"\lor")])
    except (AttributeError, RuntimeError):  # no condition, or one that SymPy does not solve
        return None


def letters_of(text: str) -> set[str]:
    """The variables of an expression, as it is written."""
    return set(re.findall(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", text))


def are_equal(gold: str, response: str) -> bool:
    """Whether two expressions have one value; False if one of them is not understood."""
    are_statements = all(map(PATTERNS.statement.search, (gold, response)))
    if are_statements and letters_of(gold) != letters_of(response):  # x = 5 and y = 5
        return False
    expected = parse(gold)
    given = parse(response)
    if None in (expected, given):
        return False
    if isinstance(given, _Inequality) and not given.free_symbols:  # 1 < 2 is no answer
        return False
    are_equations = isinstance(expected, Eq) and isinstance(given, Eq)
    if are_equations and not expected.free_symbols | given.free_symbols:
        # math-verify takes 3 + 4 = 7 for 2 + 6 = 8. An equation that is true states one value. One
        # that is false without its units, such as 0.56 = 56%, states two.
        is_value = same_number(*expected.args) or same_number(expected.lhs, given.lhs)
        return is_value and same_number(expected.rhs, given.rhs)
    if isinstance(expected, Expr) and isinstance(given, Expr):
        if expected.is_number and given.is_number:
            return same_number(expected, given)
        if not _agree_at_a_place(expected, given):
            return False
        if "|" not in gold + response:
            expected, given = _with_positive_letters(expected, given)
    if isinstance(expected, _CONDITIONS) and isinstance(given, _CONDITIONS):
        is_same = _canonical(expected) == _canonical(given)  # 1 < x < 3 and 3 > x > 1
        if is_same or isinstance(expected, And):
            return is_same
    return bool(
        verify(
            expected,
            given,
            float_rounding=COMPARED_DECIMALS,
            allow_set_relation_comp=True,
            timeout_seconds=None,
        )
    )


def _canonical(conditions: Any) -> set[Any]:
    return {one.canonical for one in And.make_args(conditions)}


def same_number(left: Any, right: Any) -> bool:
    """Whether two numbers are equal: exactly, or rounded if one of them is a decimal number."""
    pair = Tuple(left, right).doit()
    left, right = pair
    if left == right:
        return not pair.has(nan, zoo)
    if pair.has(oo, zoo, nan):
        return False
    if left.is_Rational and right.is_Rational:
        return False
    is_rounded = pair.has(Float)
    digits = 30 if is_rounded else EXACT_DIGITS
    left = left.evalf(digits)
    right = right.evalf(digits)
    apart = abs(left - right).evalf()
    size = max(abs(left), abs(right))
    if is_rounded:
        return bool(apart < 10**-COMPARED_DECIMALS and apart <= RELATIVE_TOLERANCE * size)
    return bool(apart <= Float(10, EXACT_DIGITS) ** (50 - EXACT_DIGITS) * size)


def _agree_at_a_place(left: Any, right: Any) -> bool:
    """Whether two expressions have one value where their variables are fractions.

    True where this cannot be said.
    """
    pair = Tuple(left, right)
    place = {letter: Rational(3 + number, 7) for number, letter in enumerate(pair.free_symbols)}
    try:
        here, there = pair.subs(place)
        return not (here.is_number and there.is_number) or same_number(here, there)
    except (TypeError, ValueError, AttributeError):
        return True


def _with_positive_letters(left: Any, right: Any) -> Tuple:
    """The two expressions, with positive letters if they have roots or logarithms.

    In a formula the letters under a root or in a logarithm stand for positive numbers.
    """
    pair = Tuple(left, right)
    letters = [letter for letter in pair.free_symbols if letter.is_real]
    # A substitution evaluates: the root of x^2 becomes |x|, which is no root.
    evaluated = pair.subs({letter: Dummy(real=True) for letter in letters})
    has_roots = any(power.exp.is_integer is False for power in evaluated.atoms(Pow))
    if has_roots or pair.has(log):
        pair = pair.subs({letter: Symbol(letter.name, positive=True) for letter in letters})
    return pair


def is_number(text: str) -> bool:
    """Whether an expression has a value without variables."""
    return bool(getattr(parse(text), "is_number", False))


def are_near(left: Any, right: Any) -> bool:
    """Whether two numbers are equal, or nearly so if one is rounded: 1/3 = 0.33 is meant well."""
    rounding = 0.01 if Tuple(left, right).has(Float) else 1e-9
    apart = abs(left - right).evalf(30)
    return bool(apart <= rounding * abs(right).evalf(30))
