import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from operations import Operation, Problem
from thoughts import CLOSE, END, OPEN, classify, overthink, response_of, shortest, thought_of

LEGS = Problem(
    "legs",
    "How many legs ...?",
    (
        Operation(3, "*", 8, "one spider has 8 legs"),
        Operation(5, "*", 2, "one duck has 2 legs"),
        Operation(24, "+", 10),
    ),
)
CHAIN = Problem("chains", "What is 23 + 60 - 71?", (Operation(23, "+", 60), Operation(83, "-", 71)))


@st.composite
def chains(draw):
    """Sums and differences whose operations are all different."""
    total, parts = draw(st.integers(0, 99)), []
    for _ in range(draw(st.integers(2, 4))):
        number = draw(st.integers(0, 99))
        parts.append(Operation(total, "-" if number <= total and draw(st.booleans()) else "+", number))
        total = parts[-1].result
    keys = {part.key for part in parts}
    return Problem("chains", "", tuple(parts)) if len(keys) == len(parts) else LEGS


def labels(problem, *lines):
    response = OPEN + "\n".join(lines) + "\n" + CLOSE + "12" + END
    return [sentence.label for sentence in classify(response, problem.operations)]


def test_the_shortest_response_by_hand():
    assert shortest(CHAIN) == "<think>\n23 + 60 = 83.\n83 - 71 = 12.\n</think>\n\nThe answer is \\boxed{12}.<|im_end|>"
    assert thought_of(shortest(LEGS)).splitlines() == [
        "One spider has 8 legs, so 3 * 8 = 24.",
        "One duck has 2 legs, so 5 * 2 = 10.",
        "24 + 10 = 34.",
    ]


def test_labels_of_a_thought_with_a_slip_by_hand():
    assert labels(
        CHAIN,
        "Okay, let me work this out step by step.",  # redundant
        "First, 23 plus 60 is 84.",  # essential
        "Hmm, I am not sure about that.",  # redundant
        "Wait, let me check: 23 + 60 = 83, not 84.",  # useful: another result
        "Is that right? adding 60 and 23 gives 83, so that was right.",  # redundant: the same
        "Then taking 71 from 83 leaves 12.",  # essential
        "So the answer is 12.",  # redundant
    ) == ["redundant", "essential", "redundant", "useful", "redundant", "essential", "redundant"]


def test_labels_of_a_thought_that_starts_over_by_hand():
    assert labels(
        LEGS,
        "To start, one spider has 8 legs, so multiplying 3 by 8 gives 24.",  # essential
        "Let me start over.",
        "3 times 8 is 24.",  # repeated
        "5 * 2 = 10.",  # essential
        "",
        "Spiders are nice.",  # not of the grammar
        "24 + 10 = 34",  # without its full stop
        "24 + 10 = 34.",  # essential: what stood before was no sentence
        "24 - 10 = 14.",  # the solution does not have it
        "10 plus 24 is 34.",  # the same in the other order
    ) == ["essential", "redundant", "redundant", "essential", "other", "other", "essential", "other", "redundant"]


@given(chains(), st.integers(0, 2**31))
def test_the_classifier_reads_what_the_generator_wrote(problem, seed):
    written = overthink(problem, random.Random(seed))
    assert classify(response_of(written, problem.answer), problem.operations) == written


@given(chains(), st.integers(0, 2**31))
def test_overthinking_changes_nothing(problem, seed):
    """All operations are there once, every slip is mended, and the answer is right."""
    written = overthink(problem, random.Random(seed))
    counts = Counter(sentence.label for sentence in written)
    assert counts["essential"] == len(problem.operations) and counts["other"] == 0
    slips = sum(", not " in sentence.text for sentence in written)
    assert counts["useful"] == slips
    assert response_of(written, problem.answer).endswith(f"\\boxed{{{problem.answer}}}.<|im_end|>")


def test_thoughts_overthink_and_slip_as_often_as_they_should():
    written = [overthink(CHAIN, random.Random(seed)) for seed in range(2000)]
    counts = Counter(sentence.label for thought in written for sentence in thought)
    assert 1.8 < sum(counts.values()) / counts["essential"] < 4
    assert 0.05 < counts["useful"] / counts["essential"] < 0.11  # 0.08 of the operations
    texts = {sentence.text for thought in written for sentence in thought}
    assert len(texts) > 100
