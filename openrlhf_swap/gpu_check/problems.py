"""Additions of three-digit numbers: the problems that the embedded policy was taught."""

from __future__ import annotations

import random


def additions(count: int, seed: int) -> list[tuple[str, str]]:
    """Pairs of problem and answer; the same seed gives the same ones."""
    rng = random.Random(seed)
    pairs = [(rng.randint(100, 999), rng.randint(100, 999)) for _ in range(count)]
    return [(f"What is {left} + {right}?", str(left + right)) for left, right in pairs]
