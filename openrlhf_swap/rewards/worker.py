"""What runs inside a grading process."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import signal
import sys
from typing import Any

from openrlhf_swap.rollouts.answers import answer_start, last_boxed, stated_answer, strip_answer

_DECIMAL_COMMA = re.compile(r"(-?\d+),(\d{1,2})")


def serve(memory_limit: int, lifetime: int) -> None:
    """Answer the requests on standard input, one line of JSON each, until it ends. The first line sent is "ready".

    Args:
        memory_limit: bytes of address space.
        lifetime: seconds after which one grading ends the process, for the case that its parent is gone.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: it closes standard input
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    import math_verify  # noqa: F401

    # It warns at every call that its own time limits are off; ours kill the process.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        signal.alarm(lifetime)
        print(json.dumps(_answer(json.loads(line))), file=answers, flush=True)
        signal.alarm(0)


def _answer(texts: list[str]) -> bool | str:
    try:
        return is_gradable(*texts) if len(texts) == 1 else grade(*texts)
    except Exception:  # noqa: BLE001 (a process boundary: whatever a parser raises, the grade is "error")
        return "error"


def grade(text: str, answer: str) -> bool | str:
    """True or False, or the status "no_answer" or "error".

    A number is found in nearly every text. One that is not announced as the answer can make a response right; if it
    does not, the response stated no answer.
    """
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
    golds = [gold]
    if _DECIMAL_COMMA.fullmatch(bare):
        golds.append(_parse_gold(_DECIMAL_COMMA.sub(r"\1.\2", bare)))
    if any(_same(one, prediction) for one in golds for prediction in predictions):
        return True
    return False if stated is not None or answer_start(text) is not None else "no_answer"


def is_gradable(answer: str) -> bool:
    """Whether a reference answer can be graded against: it is understood, and as a response it would be right."""
    bare = strip_answer(answer)
    gold = _parse_gold(bare)
    return bool(gold) and _same(gold, _parse_response(f"\\boxed{{{bare}}}"))


def _same(gold: list[Any], prediction: list[Any]) -> bool:
    from math_verify import verify

    return bool(verify(gold, prediction, timeout_seconds=None))


def _parse_gold(bare: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse

    if not bare:
        return []
    # Parsed bare, many answers are not recognised as mathematics at all.
    return list(parse(f"${bare}$", [LatexExtractionConfig()], parsing_timeout=None))


def _parse_response(text: str) -> list[Any]:
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse

    rules = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]
    return list(parse(text, rules, parsing_timeout=None))
