"""What runs inside a grading process."""

from __future__ import annotations

import logging
import resource

from openrlhf_swap.answers import last_boxed, strip_answer, text_after_thought


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
    boxed = last_boxed(text)
    # Sentences and other answers that no parser understands can still be compared as they stand.
    if bare and boxed is not None and strip_answer(boxed) == bare:
        return True
    gold = _parse_gold(bare)
    if not gold:
        return "error"
    prediction = _parse_response(text)
    if not prediction:
        return "no_answer"
    return bool(verify(gold, prediction, timeout_seconds=None))


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
