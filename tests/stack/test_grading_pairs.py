"""Responses and reference answers, graded as a person would grade them.

They have the formats of MATH, AMC, AIME and OlympiadBench. 500 of them were written from the
grader's principle before its code.
"""

from pathlib import Path

import pytest

from openrlhf_swap.files import read_rows

PAIRS = list(read_rows(Path(__file__).with_name("grading_pairs.jsonl")))


@pytest.mark.parametrize("is_missed", [False, True])
def test_every_pair_is_graded_as_a_person_would(grader, is_missed):
    """A pair that no rule grades well is marked `missed`, until a rule does."""
    pairs = [pair for pair in PAIRS if bool(pair.get("missed")) is is_missed]
    grades = grader.grade_many([(pair["response"], pair["answer"]) for pair in pairs])
    disagreements = []
    for pair, grade in zip(pairs, grades, strict=True):
        if grade.correct != pair["correct"]:
            disagreements.append(pair)
    assert disagreements == (pairs if is_missed else [])
