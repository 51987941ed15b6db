r"""Whether an answer equals the reference answer: what is not understood is compared, not dropped.

The words beside the values must agree, but for units that one side lacks. Lists, points, names,
ratios and equations are taken apart here, and what is left is compared as an expression.
"""

import re
from collections.abc import Sequence

from openrlhf_swap.rewards import expressions
from openrlhf_swap.rewards.choices import find_letter
from openrlhf_swap.rewards.forms import canonical, is_balanced, without_braces
from openrlhf_swap.rewards.quantities import Quantity, may_be_missing, read

LONGEST = 1000  # characters of an answer that is taken apart; others are compared as they stand
MOST_ITEMS = 50  # of a list whose order does not count
_CHOICE = re.compile(r"(?:\(([A-E])\)|([A-E])[.):])\s*(?!\\c[au]p|[,;+*/^=\-]|\Z)")
_LETTER = re.compile(r"\(?([A-E])\)?")
_THOUSANDS = re.compile(  # not in brackets, where a comma separates
    r"[(\[][^()\[\]]{0,200}[)\]]|\\\{[^{}]{0,200}\\\}"
    r"|(?<![\d,.])(?P<number>[1-9]\d{0,2}(?:,\d{3})+)(?!\d|,\d)"
)
_SET = "{}"
_SYMBOLS = re.compile(r"(?!\\(?:frac\{?\d|sqrt|pi))[A-Za-z(|\\][\w\\{}(),'|: ]*")
_CALL = re.compile(r"([A-Za-z])\(([a-z])\)")
_LETTERS_IN_A_ROW = re.compile(r"(?:\\[a-z]+ ?\{? ?)?(?:[A-Z]'*){2,}\}?")
_WITH_BASE = re.compile(r"([0-9A-Z]+)_\{?(\d+)\}?")
_DECLARED = re.compile(r"([a-z]) ?\\in ?\\mathbb")
_AS_IT_STANDS = re.compile(r"\\(?:ldots|mid|in|c[au]p|subset|mathbb|land)|:|\(.*,.*\]|\[.*,.*\)")


def same_answer(gold: str, response: str) -> bool:
    """Whether a response's answer equals the reference answer."""
    if max(len(gold), len(response)) > LONGEST:
        return gold.strip() == response.strip()
    gold = canonical(gold)
    response = canonical(response)
    if written(gold) == written(response):
        return True
    choice = _CHOICE.match(gold) or _LETTER.fullmatch(gold)
    if choice and (choice.end() == len(gold) or _LETTER.fullmatch(response)):
        return gold.strip("(")[0] == (find_letter(response) or "").upper()
    return _same_quantities(*(read(_CHOICE.sub("", text, count=1)) for text in (gold, response)))


def _same_quantities(gold: list[Quantity], response: list[Quantity]) -> bool:
    """Whether values and words agree; units may be missing on one side."""
    gold_words = {quantity.words for quantity in gold if quantity.words}
    response_words = {quantity.words for quantity in response if quantity.words}
    all_words = gold_words | response_words
    are_units = all(map(may_be_missing, all_words))
    if gold_words and response_words:
        if gold_words != response_words:
            return False
        if len(all_words) > 1 or not are_units:
            return _same_each_quantity(gold, response)
    elif not are_units:
        return False
    elif "percent" in all_words:
        sides = (gold, response) if gold_words else (response, gold)
        return _same_percentage(*map(_join, sides))
    return _same_math(_join(gold), _join(response), is_ordered=len(all_words) > 1)


def _words_of(quantity: Quantity) -> str:
    return quantity.words


def _same_each_quantity(gold: list[Quantity], response: list[Quantity]) -> bool:
    """Whether the quantities are equal one by one; in any order if all have words of their own."""
    if len({*map(_words_of, gold)}) == len(gold):
        gold = sorted(gold, key=_words_of)
        response = sorted(response, key=_words_of)
    return [*map(_words_of, gold)] == [*map(_words_of, response)] and all(
        _same_math(expected.value, given.value)
        for expected, given in zip(gold, response, strict=True)
    )


def _same_percentage(percentage: str, bare: str) -> bool:
    """Whether a percentage equals a number without a sign: 25% is 25, as a share it is 0.25."""
    value = _split_name(percentage)[1]
    if re.search(r"(?<=[\w}])\s*[-+]", value):
        return False  # 100 + 20%
    is_list = len(split_at(value, ",;")) > 1
    share = rf"\frac{{{value}}}{{100}}"
    return _same_math(bare, value) or (not is_list and _same_math(bare, share))


def _join(quantities: Sequence[Quantity]) -> str:
    joined = ""
    for value, _ in quantities:
        is_apart = joined and value and value[0] not in ",;)]}+-*/=<>\\"
        joined += f", {value}" if is_apart else value
    return joined


def _same_math(gold: str, response: str, is_ordered: bool = False) -> bool:
    """Whether two formulas are equal, with commas between thousands or commas that separate."""
    expected = _DECLARED.findall(gold)
    given = _DECLARED.findall(response)
    if len(expected) == len(given) == 1:  # n\pi, n\in\mathbb{Z}
        response = _rename(response, given[0], expected[0])
    return same_value(gold, response, is_ordered) or same_value(
        _join_thousands(gold), _join_thousands(response), is_ordered
    )


def _join_thousands(text: str) -> str:
    for match in _THOUSANDS.finditer(text):
        if match["number"]:
            text = text.replace(match[0], match[0].replace(",", ""))
    return text


def _rename(text: str, letter: str, other: str) -> str:
    return re.sub(rf"(?<![A-Za-z\\]){letter}(?![A-Za-z])", other, text)


def written(text: str) -> str:
    """The text to compare as it stands: without spaces, and braces around single characters."""
    plain = re.sub(r"\{(\w)\}", r"\1", re.sub(r"\s+", "", text))
    for operation in (r"\cup", r"\cap"):
        if operation in plain and not re.search(r"\\c[au]p", plain.replace(operation, "")):
            plain = operation.join(sorted(plain.split(operation)))
    return plain


def same_value(gold: str, response: str, is_ordered: bool = False) -> bool:
    """Whether two formulas are equal; in lists without order unless `is_ordered`."""
    gold = without_braces(gold.strip(" ,;"))
    response = without_braces(response.strip(" ,;"))
    if written(gold) == written(response):
        return True
    if not gold or not response:
        return False
    gold_brackets, expected = _take_apart(gold)
    response_brackets, given = _take_apart(response)
    brackets = {gold_brackets, response_brackets} - {""}
    is_point = bool(brackets - {_SET})
    is_single = 1 in (len(expected), len(given))
    if is_single and is_point:
        return _same_item(gold, response)  # [0,1) and 0 <= x < 1
    if is_single and len(expected) == len(given):
        return _same_item(expected[0], given[0])
    if (is_point and _SET in brackets) or len(expected) == len(brackets) == 2:
        return False  # a set is no point, and [0,1) is not (0,1]
    return _same_list(expected, given, is_ordered or is_point)


def _take_apart(text: str) -> tuple[str, list[str]]:
    r"""The brackets around a list and its items; "" without brackets. A sign ± makes two items."""
    value = _split_name(text)[1]
    is_set = value.startswith(r"\{") and value.endswith(r"\}") and r"\}" not in value[2:-2]
    if is_set and r"\mid" not in value:
        return _SET, _with_both_signs(split_at(value[2:-2], ",;"))
    items = split_at(value[1:-1], ",;")
    is_bracketed = value[:1] in ("(", "[") and value[-1:] in (")", "]") and _closes_last(value)
    if not is_bracketed or len(items) == 1:
        return "", _with_both_signs(split_at(text, ",;"))
    if r"\pm" in value:
        return "", _with_both_signs([value])
    return value[0] + value[-1], items


def _closes_last(text: str) -> bool:
    depth = 0
    for character in text[:-1]:
        depth += (character in "([{") - (character in ")]}")
        if depth == 0:
            return False
    return True


def split_at(text: str, separators: str) -> list[str]:
    """The parts of a text between these characters, those inside of brackets left alone.

    Between ",;" semicolons separate if there is one, and else commas.
    """
    if separators == ",;":
        by_semicolon = split_at(text, ";")
        return by_semicolon if len(by_semicolon) > 1 else split_at(text, ",")
    parts = [""]
    depth = 0
    for character in text:
        depth = max(0, depth + (character in "([{") - (character in ")]}"))
        if depth == 0 and character in separators:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()] or [""]


def _with_both_signs(items: Sequence[str]) -> list[str]:
    signed = []
    for item in items:
        signed.append(item.replace(r"\pm", "+").replace(r"\mp", "-"))
        if signed[-1] != item:
            signed.append(item.replace(r"\pm", "-").replace(r"\mp", "+"))
    return signed


def _same_each(gold: Sequence[str], response: Sequence[str]) -> bool:
    return len(gold) == len(response) and all(map(same_value, gold, response))


def _same_list(gold: list[str], response: list[str], is_ordered: bool) -> bool:
    gold_names = [_split_name(item)[0] for item in gold]
    response_names = [_split_name(item)[0] for item in response]
    is_named = _are_distinct(gold_names) or _are_distinct(response_names)
    if is_named and sorted(gold_names) == sorted(response_names):
        return _same_each(sorted(gold), sorted(response))
    is_declared = any(map(_DECLARED.match, gold + response))
    if is_ordered or is_named or is_declared or len(gold) > MOST_ITEMS:
        return _same_each(gold, response)
    left = list(response)
    for expected in gold:
        found = next((given for given in left if same_value(expected, given)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def _are_distinct(names: Sequence[str]) -> bool:
    r"""Whether all items have names, of several variables: x_1 and x_2 are one variable's values."""
    bases = {re.sub(r"_\{?\w+\}?", "", name) for name in names}
    return all(names) and len(names) > 1 and len(bases) == len(names)


def _split_name(text: str) -> tuple[str, str]:
    r"""The name that an equation gives to a value, and the value: x = 5, f(x) = 2x, x \in [0,1]."""
    for sign in ("=", r"\in "):
        name, found, value = text.replace(r"\in[", r"\in [").partition(sign)
        name, value = name.strip(), value.strip()
        if not found or _DECLARED.match(text) or not value:
            continue
        if _SYMBOLS.fullmatch(name):
            return written(name), value
        if len(value) == 1 and value.isalpha() and expressions.is_number(name):
            return value, name  # 5 = x
    return "", text


def _same_item(gold: str, response: str) -> bool:
    """Whether two formulas that are no lists are equal, by their names and values."""
    gold_name, gold_value = _split_name(gold)
    response_name, response_value = _split_name(response)
    if gold_name and response_name:
        return _same_named(gold, response)
    if gold_name and "=" not in response:
        return same_value(gold_value, response)
    if response_name and "=" not in gold:
        return same_value(gold, response_value)
    if response_name and gold.count("=") == 1:
        return expressions.are_equal(gold, response)
    return _same_unnamed(gold_value, response_value)


def _same_named(gold: str, response: str) -> bool:
    gold_name, gold_value = _split_name(gold)
    response_name, response_value = _split_name(response)
    gold_call = _CALL.fullmatch(gold_name)
    response_call = _CALL.fullmatch(response_name)
    if gold_call and response_call and gold_call[1] == response_call[1]:  # f(x) = x and f(t) = t
        return same_value(gold_value, _rename(response_value, response_call[2], gold_call[2]))
    if gold_name == response_name:
        return same_value(gold_value, response_value)
    are_variables = len(gold_name) == len(response_name) == 1
    if are_variables and all(map(expressions.is_number, (gold_value, response_value))):
        return False  # x = 5 and y = 5
    return expressions.are_equal(gold, response)


def _same_unnamed(gold: str, response: str) -> bool:
    gold_base = _WITH_BASE.fullmatch(gold)
    response_base = _WITH_BASE.fullmatch(response)
    if gold_base or response_base:
        is_missing = not (gold_base and response_base)
        return is_missing and gold.partition("_")[0] == response.partition("_")[0]
    if _LETTERS_IN_A_ROW.fullmatch(gold) or _LETTERS_IN_A_ROW.fullmatch(response):
        return False
    expected = split_at(gold, ":")
    given = split_at(response, ":")
    if max(len(expected), len(given)) > 2:
        return _same_ratio(expected, given)
    expected = split_at(gold, "=")
    given = split_at(response, "=")
    if len(expected) == 1 and len(given) > 1:
        return _same_as_chain(gold, given)
    if len(expected) > 1 and len(given) == 1:
        is_value = len(expected) > 2 or all(map(expressions.is_number, expected))
        return is_value and any(same_value(side, response) for side in expected)
    return expressions.are_equal(gold, response)


def _same_ratio(gold: Sequence[str], response: Sequence[str]) -> bool:
    """Whether two ratios of several numbers are proportional."""
    return len(gold) == len(response) and all(
        expressions.are_equal(rf"({one}) \cdot ({response[0]})", rf"({other}) \cdot ({gold[0]})")
        for one, other in zip(gold, response, strict=True)
    )


def _same_as_chain(gold: str, sides: Sequence[str]) -> bool:
    """Whether a value equals a chain of equations, m + n = 100 + 16 = 116, that is not false."""
    numbers = [side for side in sides if expressions.is_number(side)]
    values = [expressions.parse(number) for number in numbers]
    if not all(map(expressions.are_near, values, values[1:])):
        return False
    if len(numbers) == len(sides):
        return any(same_value(gold, side) for side in sides)
    return same_value(gold, sides[-1])


def is_understood(gold: str) -> bool:
    """Whether a reference answer is words, or mathematics whose every part is understood."""
    plain = canonical(gold)
    if not plain or not is_balanced(gold):
        return False
    quantities = read(plain)
    if any(map(_words_of, quantities)):
        return True
    return all(_is_known(item) for item in _take_apart(_join(quantities).strip(" ,;"))[1])


def _is_known(item: str) -> bool:
    value = _split_name(item)[1]
    by_rule = (_LETTERS_IN_A_ROW.fullmatch, _WITH_BASE.fullmatch, _AS_IT_STANDS.search)
    if any(rule(value) for rule in by_rule):
        return True
    brackets, parts = _take_apart(value)
    if brackets:
        return all(map(_is_known, parts))
    return any(expressions.parse(part) is not None for part in (value, value.rpartition("=")[2]))
