"""The worlds: problems, shortest thoughts and what each line is for; their policies and gates."""

import random
import re
from itertools import islice

import pytest

from openrlhf_swap.quickstart.world import CLOSE, EOS, thought_lines
from studies.toy_tasks import NAMES, chains, columns, decomposition, load, words
from studies.toy_tasks.columns import Columns
from studies.toy_tasks.decomposition import Sums
from studies.toy_tasks.make_policy import build_tokenizer
from studies.toy_tasks.words import Word, Words

PAIRS = "a1: 3+6=09\na2: 09+7=16\na3: 16+5=21\nb: 7+4=11\n"
SUMS = Sums(((3, 6, 7, 5), (7, 4)))  # 21 and 11
WORD = Words((Word("3", "AB"),), False, "59")  # A is 8314709625, B is 3094162875: 3 -A> 4 -B> 1

# The flip makes 0 of 3; then A and B in turn, up to a letter whose number has two digits.
CHAIN = Words((Word("3", "ABABABABABA"),), True, "59")
CHAIN_QUESTION = "Flip 3 by A1B2A3B4A5B6A7B8A9B10A11, not 59"
CHAIN_LINES = (
    "flip 3>0\nA1 0>8\nB2 8>7\nA3 7>6\nB4 6>2\nA5 2>1\nB6 1>0\nA7 0>8\nB8 8>7\nA9 7>6\n"
    "B10 6>2\nA11 2>1\n"
)


@pytest.mark.parametrize(
    ("world", "problem", "question", "thought", "answer"),
    [
        (decomposition, SUMS, "Sums of a: 3+6+7+5, b: 7+4", PAIRS, "2111"),
        (words, WORD, "From 3 by A1B2, not 59", "A1 3>4\nB2 4>1\n", "1"),
        (chains, CHAIN, CHAIN_QUESTION, CHAIN_LINES, "1"),
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
            chains,
            CHAIN.question,
            [
                ("flip 3>0", "essential"),
                ("A11 2>1", "essential"),  # the last letter before the others is a statement
                ("A1 0>8", "essential"),  # and A1 is not A11
                ("wait A1 0>8", "redundant"),
                ("A11 2>1", "redundant"),
                ("A12 2>1", "redundant"),  # there is no such letter
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


def walked(question):
    """The last symbol of a question with one word, letter by letter."""
    opening, symbol, heads, _ = re.fullmatch(r"(\w+) (\d) by (\w+), not (\d\d)", question).groups()
    if opening == "Flip":
        symbol = words.FLIP[int(symbol)]
    for letter in filter(str.isalpha, heads):
        symbol = words.LETTERS[letter][int(symbol)]
    return symbol


def test_every_length_of_a_chain_comes_once_in_seven_problems():
    problems = list(islice(chains.problems(5), 70))
    for start in range(0, len(problems), 7):
        lengths = [len(problem.words[0].letters) for problem in problems[start : start + 7]]
        assert sorted(lengths) == [2, 3, 4, 6, 9, 13, 18]
    for problem in problems:
        assert walked(problem.question) == problem.answer not in problem.ruled_out


def test_redundancy_grows_with_the_length_of_a_chain():
    tokenizer = build_tokenizer(chains)
    taught = {2: 0, 6: 0, 18: 0}
    shortest = dict(taught)
    for number, problem in enumerate(islice(chains.problems(6), 700)):
        letters = len(problem.words[0].letters)
        if letters in taught:
            trace = chains.overthinking_trace(problem, random.Random(number))
            assert len(thought_lines(trace)) <= chains.LINES
            taught[letters] += len(tokenizer.tokenize(trace))
            shortest[letters] += len(tokenizer.tokenize(chains.shortest_trace(problem)))
    ratios = [taught[letters] / shortest[letters] for letters in taught]
    assert ratios == sorted(ratios) and 1.7 < ratios[0] < ratios[-1] < 2.5
