"""The world `words` with two words a problem: each one's last line gains half of what is to be gained."""

from __future__ import annotations

from functools import partial

import words
from words import (
    LABELS,
    MEASURES,
    POLICY,
    STEP_TOKENS,
    THINK,
    WORDS,
    label_lines,
    level,
    overthinking_trace,
    prompt,
    supervised_row,
    taught,
)

__all__ = [
    "LABELS",
    "MEASURES",
    "POLICY",
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

problems = partial(words.problems, count=2)
