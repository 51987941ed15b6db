"""The world `words` with two words a problem: the last line of each gains half of the answer.

The first word has four letters, the second one to five.
"""

from __future__ import annotations

from functools import partial

from studies.toy_tasks import words
from studies.toy_tasks.words import (
    LABELS,
    MEASURES,
    STEP_TOKENS,
    THINK,
    WORDS,
    label_lines,
    level,
    overthinking_trace,
    prompt,
    supervised_row,
)

__all__ = [
    "LABELS",
    "MEASURES",
    "STEP_TOKENS",
    "THINK",
    "WORDS",
    "label_lines",
    "level",
    "overthinking_trace",
    "problems",
    "prompt",
    "supervised_row",
    "taught",
]

problems = taught = partial(words.problems, count=2, first=words.SECOND - 1)
