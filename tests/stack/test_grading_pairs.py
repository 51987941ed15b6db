"""Responses and reference answers, graded as a person would: formats of MATH, AMC, AIME and
OlympiadBench, and 500 cases that were written from the grader's principle before its code.
"""

from pathlib import Path

import pytest

from openrlhf_swap.files import read_rows

PAIRS = list(read_rows(Path(__file__).with_name("grading_pairs.jsonl")))


@pytest.mark.parametrize("is_missed", [False, True])
def test_every_pair_is_graded_as_a_person_would(grader, is_missed):
    """What no rule grades well is marked `missed`; once it is, it belongs to the others."""
    pairs = [pair for pair in PAIRS if bool(pair.get("missed")) is is_missed]
    grades = grader.grade_many([(pair["response"], pair["answer"]) for pair in pairs])
    disagreements = [
        pair for pair, grade in zip(pairs, grades, strict=True) if grade.correct != pair["correct"]
    ]
    assert disagreements == (pairs if is_missed else [])
