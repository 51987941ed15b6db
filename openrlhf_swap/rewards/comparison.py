r"""Whether an answer equals the reference answer: what is not understood is compared, not dropped.

The words beside the values must agree, but for units that one side lacks. Lists, points, names,
ratios and equations are taken apart here, and what is left is compared as an expression.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from openrlhf_swap.rewards import expressions
from openrlhf_swap.rewards.choices import find_letter
from openrlhf_swap.rewards.forms import PATTERNS, canonical, depths
from openrlhf_swap.rewards.quantities import mark_words, may_be_missing, split_words

LONGEST_COMPARED = 1000  # characters of an answer; longer ones are compared as they stand
MOST_ITEMS = 50  # of a list whose order does not count


def same_answer(gold: str, response: str) -> bool:
    """Whether a response's answer equals the reference answer."""
    if max(len(gold), len(response)) > LONGEST_COMPARED:
        return gold == response
    gold = canonical(gold)
    response = canonical(response)
    pair = f"{gold}\n{response}"
    if PATTERNS.different.search(pair):
        return False
    choice = PATTERNS.choices.fullmatch(pair)
    if choice:
        return choice["letter"] == find_letter(response)
    gold = mark_words(gold)
    response = mark_words(response)
    if same_value(gold, response):
        return True
    gold = PATTERNS.thousands.sub("", gold)
    response = PATTERNS.thousands.sub("", response)
    return same_value(gold, response)


def written(text: str) -> str:
    """The text to compare as it stands: without spaces, and braces around single characters."""
    plain = re.sub(r"\{(\w)\}", r"\1", text.replace(" ", ""))
    operators = set(re.findall(r"\\c[au]p", plain))
    if len(operators) == 1:  # A \cup B is B \cup A
        operator: str = operators.pop()
        return operator.join(sorted(plain.split(operator)))
    return plain


def same_value(gold: str, response: str) -> bool:
    """Whether two marked formulas are equal; in lists without brackets order does not count."""
    if written(gold) == written(response):
        return True
    gold_brackets, expected = _take_apart(gold)
    response_brackets, given = _take_apart(response)
    brackets = {gold_brackets, response_brackets} - {""}
    is_point = bool(brackets - {"{}"})
    if 1 in (len(expected), len(given)):
        if is_point:  # [0,1) and 0 <= x < 1
            return _same_item(gold, response)
        return len(expected) == len(given) and _same_item(expected[0], given[0])
    if len(brackets) == 2 and ("{}" in brackets or len(expected) == 2):
        return False  # a set is no point, and [0,1) is not (0,1]
    return _same_list(expected, given, is_point)


class _Items(NamedTuple):
    """The brackets around a list, such as "()", and its items; brackets may be ""."""

    brackets: str
    items: list[str]


class _Named(NamedTuple):
    """A value, and the name that an equation gives it, or ""."""

    name: str
    value: str


def _take_apart(text: str) -> _Items:
    """The items of a list. A sign ± makes two items."""
    value = _split_name(text).value
    items = PATTERNS.set_of_items.fullmatch(value)
    if items:
        return _Items("{}", _with_both_signs(split_at(items[1])))
    coordinates = split_at(value[1:-1])
    closes_early = 0 in depths(value)[:-1]
    is_bracketed = PATTERNS.bracketed.fullmatch(value) and not closes_early
    if not is_bracketed or len(coordinates) == 1:
        return _Items("", _with_both_signs(split_at(text)))
    points = _with_both_signs([value])
    if len(points) > 1:
        return _Items("", points)
    return _Items(value[0] + value[-1], coordinates)


def split_at(text: str, separator: str = "") -> list[str]:
    """The parts of a text between separators that stand outside of brackets.

    By default semicolons are the separators if there is one, and else commas.
    """
    if not separator:
        separator = ";" if len(split_at(text, ";")) > 1 else ","
    parts = [""]
    for character, depth in zip(text, depths(text), strict=True):
        if depth <= 0 and character == separator:
            parts.append("")
        else:
            parts[-1] += character
    stripped = [part.strip() for part in parts]
    return [part for part in stripped if part] or [""]


def _with_both_signs(items: Sequence[str]) -> list[str]:
    signed: list[str] = []
    for item in items:
        upper = item.replace(r"\pm", "+").replace(r"\mp", "-")
        lower = item.replace(r"\pm", "-").replace(r"\mp", "+")
        signed += dict.fromkeys((upper, lower))
    return signed


def _same_list(gold: list[str], response: list[str], is_ordered: bool) -> bool:
    if len(gold) != len(response):
        return False
    items = [*gold, *response]
    has_values = any("⟦" not in item for item in items)
    is_ordered |= has_values and len(split_words(",".join(items)).words) > 1
    are_named = _are_named(gold) or _are_named(response)
    if is_ordered or are_named or len(gold) > MOST_ITEMS:
        if sorted(map(_name_of, gold)) == sorted(map(_name_of, response)):
            gold = sorted(gold, key=_name_of)
            response = sorted(response, key=_name_of)
        return all(map(same_value, gold, response))
    for expected in gold:
        for given in response:
            if same_value(expected, given):
                response.remove(given)
                break
        else:
            return False
    return True


def _are_named(items: Sequence[str]) -> bool:
    """Whether each item has the name of a variable of its own; x_1 and x_2 are one variable."""
    names = {re.sub(r"_\{?\w+\}?", "", _name_of(item)) for item in items}
    return "" not in names and len(names) == len(items)


def _name_of(item: str) -> str:
    return _split_name(item).name


def _split_name(text: str) -> _Named:
    r"""An equation as a name and a value: x = 5, f(x) = 2x, x \in [0,1]."""
    named = PATTERNS.named.fullmatch(text)
    if named:
        return _Named(written(named["name"]), named["value"])
    return _Named("", text)


def _same_item(gold: str, response: str) -> bool:
    """Whether two formulas that are no lists are equal, by their words, names and values."""
    gold_plain, gold_words = split_words(gold)
    response_plain, response_words = split_words(response)
    missing = gold_words ^ response_words
    if missing and gold_words and response_words:
        return False
    if not all(map(may_be_missing, missing)):
        return False
    if missing == {"percent"}:
        if gold_words:
            return _same_percentage(gold_plain, response_plain)
        return _same_percentage(response_plain, gold_plain)
    if gold_words or response_words:
        return same_value(gold_plain, response_plain)
    calls = PATTERNS.calls.match(f"{gold}\n{response}")
    if calls:
        other = rf"(?<![A-Za-z\\]){calls['other']}(?![A-Za-z])"
        response = re.sub(other, calls["variable"], response)
    gold_name, gold_value = _split_name(gold)
    response_name, response_value = _split_name(response)
    names = {gold_name, response_name} - {""}
    if len(names) == 2:
        return expressions.are_equal(gold, response)
    other_side = response if gold_name else gold
    if names and ("=" not in other_side or gold_name == response_name):
        return same_value(gold_value, response_value)
    if names and PATTERNS.equation.fullmatch(f"{gold}\n{response}"):
        return expressions.are_equal(gold, response)
    return _same_unnamed(gold_value, response_value)


def _same_percentage(percentage: str, bare: str) -> bool:
    """Whether a percentage equals a number without a sign: 25% is 25, as a share it is 0.25."""
    value = _split_name(percentage).value
    if re.search(r"(?<=[\w}])\s*[-+]", value):
        return False  # 100 + 20%
    share = rf"\frac{{{value}}}{{100}}"
    return same_value(bare, value) or same_value(bare, share)


def _same_unnamed(gold: str, response: str) -> bool:
    pair = f"{gold}\n{response}"
    if PATTERNS.alike.fullmatch(pair):
        return True
    if PATTERNS.unlike.fullmatch(pair):
        return False
    expected = split_at(gold, ":")
    given = split_at(response, ":")
    if max(len(expected), len(given)) > 2:
        return _same_ratio(expected, given)
    expected = split_at(gold, "=")
    given = split_at(response, "=")
    if len(expected) == 1 and len(given) > 1:
        return _same_as_chain(gold, given)
    if len(expected) > 2 and len(given) == 1:
        return any(same_value(side, response) for side in expected)
    return expressions.are_equal(gold, response)


def _same_ratio(gold: Sequence[str], response: Sequence[str]) -> bool:
    """Whether two ratios of several numbers are proportional."""
    if len(gold) != len(response):
        return False
    for one, other in zip(gold, response, strict=True):
        left = rf"({one}) \cdot ({response[0]})"
        right = rf"({other}) \cdot ({gold[0]})"
        if not expressions.are_equal(left, right):
            return False
    return True


def _same_as_chain(gold: str, sides: Sequence[str]) -> bool:
    """Whether a value equals a chain of equations, m + n = 100 + 16 = 116, that is not false."""
    numbers = [*filter(expressions.is_number, sides)]
    values = [*map(expressions.parse, numbers)]
    is_true = all(map(expressions.are_near, values, values[1:]))
    return is_true and any(same_value(gold, side) for side in numbers or sides[-1:])


def is_understood(gold: str) -> bool:
    """Whether a reference answer is whole; what cannot be parsed is compared as it stands."""
    plain = canonical(gold)
    return depths(plain)[-1:] == [0] and not PATTERNS.broken.search(plain)
