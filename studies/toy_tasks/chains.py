"""The world `words` with words of 2 to 18 letters: easy and hard problems need different lengths.

Of seven problems in a row one has 2 letters, one 3, one 4, one 6, one 9, one 13 and one 18, in a
drawn order. Redundancy grows with the length, because a restart repeats all lines so far: a taught
trace has 1.8 times the necessary tokens at 2 letters, and 2.4 times at 18. A limit on the length
that is tight for the short words cuts off needed lines of the long ones. Labels, lines and errors
are those of `words`; the errors of a letter's line are rarer in long words, so that thoughts of any
length go wrong about equally often.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from studies.toy_tasks import words
from studies.toy_tasks.words import (
    LABELS,
    LETTERS,
    MEASURES,
    STEP_TOKENS,
    THINK,
    Thought,
    Words,
    label_lines,
    level,
    prompt,
    shortest_trace,
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
    "shortest_trace",
    "supervised_row",
    "taught",
]

LENGTHS = (2, 3, 4, 6, 9, 13, 18)  # letters
WORDS = words.tokens_of(LENGTHS[-1])
LINES = 72  # of a thought at most; with the answer they fit into 320 tokens
MEAN_LETTERS = sum(words.LENGTHS) / 2  # of the world `words`


def problems(seed: int, exclude: frozenset[Words] = frozenset()) -> Iterator[Words]:
    """An endless, seeded stream of distinct problems, none in `exclude`; every length in turn."""
    rng = random.Random(seed)
    seen = set(exclude)
    while True:
        for letters in rng.sample(LENGTHS, len(LENGTHS)):
            problem = drawn(letters, rng)
            while problem in seen:
                problem = drawn(letters, rng)
            seen.add(problem)
            yield problem


taught = problems


def drawn(letters: int, rng: random.Random) -> Words:
    """A problem with a word of so many letters."""
    word = "".join(rng.choices(list(LETTERS), k=letters))
    return words.problem_of([word], rng)


def overthinking_trace(problem: Words, rng: random.Random) -> str:
    """A response as taught to the base policy."""
    return overthink(problem, rng).response


def supervised_row(problem: Words, rng: random.Random, probe_share: float) -> tuple[str, str]:
    """A full trace, or a probe, as in `words`."""
    return words.row_of(problem, overthink(problem, rng), rng, probe_share)


def overthink(problem: Words, rng: random.Random) -> Thought:
    """A thought of at most LINES lines."""
    (word,) = problem.words
    return words.overthink(problem, rng, LINES, errors=MEAN_LETTERS / len(word.letters))
