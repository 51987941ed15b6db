"""Pairs of a response and a reference answer in the formats of MATH, AMC, AIME and OlympiadBench."""

from contextlib import closing
from pathlib import Path

import pytest

from openrlhf_swap.files import read_rows
from openrlhf_swap.rewards import Grader


def pairs_of(name):
    return list(read_rows(Path(__file__).parent / "grading_pairs" / name))


@pytest.fixture(scope="module")
def grader():
    with closing(Grader()) as grader:
        yield grader


def disagreements(grader, name):
    pairs = pairs_of(name)
    grades = grader.grade_many([(pair["response"], pair["answer"]) for pair in pairs])
    return [
        pair for pair, grade in zip(pairs, grades, strict=True) if grade.correct != pair["correct"]
    ]


def test_every_pair_is_graded_as_a_person_would(grader):
    assert disagreements(grader, "pairs.jsonl") == []
    verdicts = [pair["correct"] for pair in pairs_of("pairs.jsonl")]
    assert len(verdicts) > 350 and verdicts.count(False) > 150


def test_known_misses_are_still_misses(grader):
    """What math-verify cannot do, and no small rule mends. One that is graded well now belongs to
    the pairs.
    """
    assert disagreements(grader, "known_misses.jsonl") == pairs_of("known_misses.jsonl")
