"""Points of runs, a policy on held-out problems each: read, kept and valued."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from operator import attrgetter
from pathlib import Path

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import Row, read_rows

COST = (
    20.0  # points of accuracy that the base's excess length counts as; chosen before the first run
)
BASE = "base"
COLUMNS = ("method", "strength", "seed", "step", "accuracy", "tokens", "missing", "redundant")


@dataclass(frozen=True)
class Point:
    """A policy on held-out problems: accuracy in percent, mean tokens, and lines.

    NaN where these were not counted.
    """

    method: str
    strength: str
    seed: int
    step: int
    accuracy: float
    tokens: float
    missing: float = math.nan
    redundant: float = math.nan


@dataclass(frozen=True)
class Ideal:
    """What no policy beats: A* in percent, and L* tokens; and the base's accuracy and length."""

    accuracy: float
    tokens: float
    base: Point


def read_runs(folder: Path) -> list[Point]:
    """The evaluations of all finished runs, and the base's.

    Of a run's last policy the mean of both.

    Raises: DataError: when there is no base, or a run did not evaluate itself, or not after its
        last step.
    """
    base = folder / "base.json"
    if not base.exists():
        raise DataError(
            f"--runs is {folder}, without base.json; run compare.sh with OUTPUT={folder} first"
        )
    measured = json.loads(base.read_text(encoding="utf-8"))
    lines = {name: measured.get(name, math.nan) for name in ("missing", "redundant")}
    points = [Point(BASE, "", 0, 0, 100 * measured["accuracy"], measured["tokens"], **lines)]
    for result in sorted(folder.glob("*@*/seed_*/result.json")):
        method, _, strength = result.parts[-3].rpartition("@")
        evaluations = result.with_name("evaluations.jsonl")
        if not evaluations.exists():
            raise DataError(
                f"{result.parent} has no evaluations.jsonl; run compare.sh with EVALUATE_EVERY=5"
            )
        seed = int(result.parts[-2].removeprefix("seed_"))
        at_end = json.loads(result.read_text(encoding="utf-8"))
        rows = list(read_rows(evaluations))
        _check_last(rows, result.parent)
        for row in rows:
            (accuracy,) = (value for name, value in row.items() if name.endswith("_pass1"))
            tokens = row["eval_response_length_mean"]
            lines = {}
            if row is rows[-1]:
                accuracy = (accuracy + at_end["accuracy"]) / 2
                tokens = (tokens + at_end["tokens"]) / 2
                lines = {name: at_end.get(name, math.nan) for name in ("missing", "redundant")}
            points.append(
                Point(method, strength, seed, int(row["step"]), 100 * accuracy, tokens, **lines)
            )
    return points


def _last_step(rows: Iterable[Row]) -> int:
    return max((int(row["step"]) for row in rows), default=0)


def _check_last(evaluations: Sequence[Row], run: Path) -> None:
    """Raise DataError unless a run's last evaluation on the way is of its last policy.

    The run's result is of that policy.
    """
    evaluated = _last_step(evaluations)
    last = _last_step(read_rows(run / "metrics.jsonl"))
    if last and evaluated != last:
        raise DataError(
            f"{run} evaluated itself last after step {evaluated} of {last}; run compare.sh with "
            "an EVALUATE_EVERY that divides STEPS"
        )


def keep(path: Path, points: Sequence[Point]) -> None:
    """Write a row for every point; the same points give the same bytes."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(COLUMNS)
    rows.writerows(map(attrgetter(*COLUMNS), points))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


def read_kept(path: Path) -> list[Point]:
    """What `keep` wrote."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [
            Point(method, strength, int(seed), int(step), *map(float, numbers))
            for method, strength, seed, step, *numbers in islice(csv.reader(file), 1, None)
        ]


def of_methods(points: Sequence[Point], names: Sequence[str]) -> list[Point]:
    """The base's point, and those of the methods and configurations, METHOD or METHOD@STRENGTH."""
    return [
        p
        for p in points
        if p.method == BASE or p.method in names or f"{p.method}@{p.strength}" in names
    ]


def front(points: Sequence[Point], tokens: float) -> float:
    """The highest accuracy with at most so many tokens; 0 if none is that short."""
    return max((point.accuracy for point in points if point.tokens <= tokens), default=0.0)


def area(points: Sequence[Point], shortest: float, longest: float) -> float:
    """The front's mean over log tokens between two lengths.

    The front is a staircase, so the integral is exact.
    """
    corners = sorted(
        {shortest, longest, *(p.tokens for p in points if shortest < p.tokens < longest)}
    )
    pieces = pairwise(corners)
    total = sum(front(points, left) * math.log(right / left) for left, right in pieces)
    return total / math.log(longest / shortest)


def regret(point: Point, ideal: Ideal) -> float:
    """In points of accuracy."""
    excess = max(0.0, point.tokens - ideal.tokens) / (ideal.base.tokens - ideal.tokens)
    return max(0.0, ideal.accuracy - point.accuracy) + COST * excess


def by_seed(points: Sequence[Point]) -> dict[str, dict[int, list[Point]]]:
    """Method -> seed -> its points, the base's among them."""
    base = [point for point in points if point.method == BASE]
    found: dict[str, dict[int, list[Point]]] = defaultdict(lambda: defaultdict(lambda: list(base)))
    for point in points:
        if point.method != BASE:
            found[point.method][point.seed].append(point)
    return {method: dict(seeds) for method, seeds in found.items()}
