"""The worlds: problems, shortest thoughts and what each line is for; their policies and gates."""

import random
from itertools import islice

import pytest

from openrlhf_swap.quickstart.world import CLOSE, EOS, thought_lines
from studies.toy_tasks import NAMES, columns, decomposition, load, words
from studies.toy_tasks.columns import Columns
from studies.toy_tasks.decomposition import Sums
from studies.toy_tasks.make_policy import build_tokenizer
from studies.toy_tasks.words import Word, Words

PAIRS = "a1: 3+6=09\na2: 09+7=16\na3: 16+5=21\nb: 7+4=11\n"
SUMS = Sums(((3, 6, 7, 5), (7, 4)))  # 21 and 11
WORD = Words((Word("3", "AB"),), False, "59")  # A is 8314709625, B is 3094162875: 3 -A> 4 -B> 1


@pytest.mark.parametrize(
    ("world", "problem", "question", "thought", "answer"),
    [
        (decomposition, SUMS, "Sums of a: 3+6+7+5, b: 7+4", PAIRS, "2111"),
        (words, WORD, "From 3 by A1B2, not 59", "A1 3>4\nB2 4>1\n", "1"),
    ],
)
def test_a_problem_and_its_shortest_thought_by_hand(world, problem, question, thought, answer):
    assert (problem.question, problem.answer) == (question, answer)
    assert world.shortest_trace(problem) == thought + CLOSE + answer + "}" + EOS
    assert set(world.label_lines(question, thought)) == {"essential"}


@pytest.mark.parametrize(
    ("world", "question", "lines"),
    [
        (
            decomposition,
            SUMS.question,
            [
                ("a: =22", "essential"),  # a guess, and wrong
                ("wait a: =22", "redundant"),
                ("a1: 3+6=09", "useful"),  # checks the guess
                ("a2: 09+7=16", "useful"),
                ("a3: 16+5=21", "useful"),
                ("a: =20", "redundant"),  # makes it wrong again
                ("a: =21", "useful"),  # and mends that
                ("b: 7+4=11", "essential"),
                ("c: 1+1=02", "redundant"),  # there is no such sum
            ],
        ),
        (
            words,
            WORD.question,
            [
                ("flip 3>3", "redundant"),  # nothing is to be flipped
                ("A1 3>5", "essential"),  # a slip is a statement
                ("A1 3>4", "redundant"),
                ("C3 4>9", "redundant"),  # there is no such letter
            ],
        ),
        (
            columns,
            Columns("BCCCCC").question,
            [
                ("B1>7", "essential"),
                ("wait B1>7", "redundant"),
                ("C2>0", "essential"),
                ("D2>0", "redundant"),
            ],
        ),
    ],
)
def test_lines_are_labelled_by_what_they_add(world, question, lines):
    response = "".join(f"{line}\n" for line, _ in lines) + CLOSE + "}"
    assert world.label_lines(question, response) == [label for _, label in lines]


@pytest.mark.parametrize("name", NAMES[1:])  # those of studies
def test_problems_are_seeded_and_distinct_and_taught_traces_are_right(name):
    world = load(name)
    first = list(islice(world.problems(3), 300))
    assert first == list(islice(world.problems(3), 300))
    assert len({*first, *islice(world.problems(3, frozenset(first)), 300)}) == 600
    tokenizer = build_tokenizer(world)
    for number, problem in enumerate(first[:40]):
        given, taught = world.supervised_row(problem, random.Random(number), 0.0)
        labels = world.label_lines(problem.question, taught)
        assert set(labels) <= set(world.LABELS)
        assert labels.count("essential") <= world.level(problem.question)
        assert len(labels) == len(thought_lines(taught)) and taught.endswith("}" + EOS)
        ids = tokenizer(given + taught, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == given + taught
        given, answer = world.supervised_row(problem, random.Random(number), 1.0)
        assert given.endswith(CLOSE) and answer.endswith("}" + EOS)
