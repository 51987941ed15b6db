"""The kept thoughts of a real model: the truth about their steps, beside their signals."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from openrlhf_swap.evaluation.samples import key_of
from openrlhf_swap.files import Row, parse_value, read_rows, to_line
from studies.real_model.signals import signals_of, step_lengths

RESULTS = Path(__file__).parents[1] / "records" / "results"
FIRST = "first"
SAMPLES = {  # of thoughts
    FIRST: RESULTS / "real_signals.jsonl.gz",
    "second": RESULTS / "real_signals_second.jsonl.gz",
}
DIGITS = 5  # of a kept number
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class KnownThought:
    """A thought of K steps with what is true of each step, and with its signals.

    Attributes:
        necessity: (K,) V_k - V_{k-1}, the success that is lost without the step.
        halves: the necessity by the first half of the continuations, and by the second.
        wasted: (K,) tokens by which the thought is longer with the step; negative where it saves.
        signals: by name, (K,) numbers.
    """

    necessity: Numbers
    halves: tuple[Numbers, Numbers]
    wasted: Numbers
    signals: dict[str, Numbers]

    @classmethod
    def of(cls, row: Row) -> KnownThought:
        """From a kept row."""
        correct = np.array(row["correct"], float)
        half = correct.shape[1] // 2
        first, second = correct[:, :half], correct[:, half:]
        signals = {name: np.array(values, float) for name, values in signals_of(row).items()}
        return cls(
            necessity=necessities(correct),
            halves=(necessities(first), necessities(second)),
            wasted=wasted_tokens(np.array(row["tokens"], float), step_lengths(row)),
            signals=signals,
        )


def necessities(correct: Numbers) -> Numbers:
    """(K,) V_k - V_{k-1}, from (K+1, samples) whether a continuation is correct, as 0 and 1."""
    return cast(Numbers, np.diff(correct.mean(axis=1)))


def wasted_tokens(tokens: Numbers, lengths: Iterable[int]) -> Numbers:
    """(K,) |s_k| + R_k - R_{k-1}, from (K+1, samples) tokens of continuations and (K,) of steps."""
    changes = np.diff(tokens.mean(axis=1))
    return cast(Numbers, np.array(list(lengths)) + changes)


def join(thoughts: Path, signals: Sequence[Path], truth: Path, weights: str) -> list[Row]:
    """The rows to keep, of the thoughts that have a truth and are in each file of signals.

    They are in the order of the thoughts. `weights` is the hash of the model's files.
    """
    parts = []
    for path in (*signals, truth):
        parts.append({key_of(row): row for row in read_rows(path)})
    joined = []
    for thought in read_rows(thoughts):
        key = key_of(thought)
        if all(key in part for part in parts):
            row = dict(thought)
            for part in parts:
                row |= part[key]
            row["weights"] = weights
            joined.append({name: rounded(value) for name, value in row.items()})
    return joined


def rounded(value: object) -> object:
    """A number, or a list of numbers, with so many digits; anything else as it is."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return value


def keep(rows: Iterable[Row], path: Path) -> None:
    """Write rows; the same rows make the same file."""
    text = "".join(map(to_line, rows))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def read_kept(path: Path = SAMPLES[FIRST]) -> list[Row]:
    return [parse_value(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
