"""Loops, and the correlation of length and correctness, by hand."""

import pytest

from openrlhf_swap.runs.diagnostics import is_looping, length_correctness

NEW = list(range(3000))  # tokens that never repeat


def thought(paragraph, times, before=1000, after=0):
    """A response that says a paragraph of so many tokens so many times."""
    loop = list(range(5000, 5000 + paragraph)) * times
    return NEW[:before] + loop + NEW[before : before + after]


@pytest.mark.parametrize(
    ("ids", "loops"),
    [
        (NEW, False),
        ([], False),
        ([7] * 19, False),  # shorter than a phrase
        ([7] * 40, True),  # "no, no, no"
        (thought(1, 600), True),
        (thought(50, 10), True),  # a sentence
        (thought(300, 4), True),  # a page
        (thought(300, 4, after=1500), True),  # and it found out again
        (thought(100, 2), False),  # said twice
        (thought(250, 2), False),
        (thought(50, 4), False),  # 150 repeated tokens in a long response
        (thought(50, 4, before=20), True),  # most of a short one
        (thought(800, 4), False),  # too far apart
    ],
)
def test_a_response_that_repeats_itself_loops(ids, loops):
    assert is_looping(ids) == loops


def test_steps_that_differ_in_one_number_are_no_loop():
    """Sums of one form: nine tokens of ten are the same, and no phrase of 20 is."""
    ids = []
    for number in range(100):
        ids += [*range(9), 100 + number]
    assert not is_looping(ids)


@pytest.mark.parametrize(
    ("lengths", "correct", "expected"),
    [
        ([10, 20, 30, 40], [True, True, False, False], -0.894427191),
        ([10, 30], [False, True], 1.0),
        ([10, 20, 30, 20], [True, False, True, False], 0.0),
        ([10, 20], [True, True], None),
        ([10, 10], [True, False], None),
    ],
)
def test_length_and_correctness_within_a_group(lengths, correct, expected):
    assert length_correctness(lengths, correct) == pytest.approx(expected)
