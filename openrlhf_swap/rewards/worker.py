"""What runs inside a grading process."""

from __future__ import annotations

import logging
import re
import resource

from openrlhf_swap.answers import last_boxed, stated_answer, strip_answer, text_after_thought

_DECIMAL_COMMA = re.compile(r"(-?\d+),(\d{1,2})")


def initialise(memory_limit: int) -> None:
    """Limit the process's memory and import the grader once."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    import math_verify  # noqa: F401

    # It warns at every call that its own time limits are off; ours kill the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)


def grade(response: str, answer: str) -> bool | str:
    """True or False, or the status "no_answer" or "error"."""
    from math_verify import verify

    text = text_after_thought(response)
    bare = strip_answer(answer)
    stated = stated_answer(text)
    # Sentences and other answers that no parser understands can still be compared as they stand.
    if bare and stated is not None and strip_answer(stated) == bare:
        return True
    gold = _parse_gold(bare)
    if not gold:
        return "error"
    predictions = [_parse_response(text)]
    if stated is not None and last_boxed(text) is None:
        predictions.append(_parse_gold(strip_answer(stated)))
    predictions = [prediction for prediction in predictions if prediction]
    if not predictions:
        return "no_answer"
    golds = [gold]
    if _DECIMAL_COMMA.fullmatch(bare):
        golds.append(_parse_gold(_DECIMAL_COMMA.sub(r"\1.\2", bare)))
    return any(verify(one, prediction, timeout_seconds=None) for one in golds for prediction in predictions)


def is_parsable(answer: str) -> bool:
    """Whether a known answer can be graded against."""
    return bool(_parse_gold(strip_answer(answer)))


def _parse_gold(bare: str) -> list:
    from math_verify import LatexExtractionConfig, parse

    if not bare:
        return []
    # Parsed bare, many answers are not recognised as mathematics at all.
    return parse(f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None)


def _parse_response(text: str) -> list:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    return parse(text, [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()], parsing_timeout=None)
