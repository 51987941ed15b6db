"""The world in which accuracy is paid for in tokens: its problems, its traces and what each line is for."""

import random
import re

import decomposition as world
import pytest
from decomposition import Sums, from_question, label_lines, overthink, prompt, shortest_trace, supervised_row
from hypothesis import given
from hypothesis import strategies as st
from make_policy import build_tokenizer
from world import CLOSE, EOS, NAMES, load, thought_lines

from openrlhf_swap import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rollouts.rollout import StepReader

digits = st.sampled_from(world.DIGITS)
problems = st.builds(
    lambda sums: Sums(tuple(map(tuple, sums))),
    st.lists(st.lists(digits, min_size=2, max_size=5), min_size=1, max_size=5),
)
PROBLEM = Sums(((3, 6, 7, 5), (7, 4)))  # 21 and 11


def test_the_ways_by_hand():
    assert PROBLEM.question == "Sums of a: 3+6+7+5, b: 7+4"
    assert (PROBLEM.answer, PROBLEM.operations, world.level(PROBLEM.question)) == ("2111", 4, 4)
    assert shortest_trace(PROBLEM) == "a1: 3+6=09\na2: 09+7=16\na3: 16+5=21\nb: 7+4=11\n" + CLOSE + "2111}" + EOS
    assert shortest_trace(PROBLEM, guessing=True) == "a: =21\nb: 7+4=11\n" + CLOSE + "2111}" + EOS


@given(problems)
def test_a_question_is_read_back(problem):
    assert from_question(problem.question) == problem


def test_lines_are_labelled_by_what_they_add():
    trace = {
        "a: =22": "essential",  # a guess, and wrong
        "wait a: =22": "redundant",
        "a1: 3+6=09": "useful",  # checks the guess
        "check a1: 3+6=09": "redundant",
        "a2: 09+7=16": "useful",
        "a3: 16+5=21": "useful",
        "again a3: 16+5=21": "redundant",
        "a: =20": "redundant",  # makes it wrong again
        "a: =21": "useful",  # and mends that
        "let me start over": "redundant",
        "b: 7+4=11": "essential",
        "c: 1+1=02": "redundant",  # there is no such sum
        "b1: 7+4=11": "redundant",  # a sum of two has no parts
        "hmm": "redundant",
    }
    labels = label_lines(PROBLEM.question, "\n".join(trace) + "\n" + CLOSE + "2111}")
    assert dict(zip(trace, labels, strict=True)) == trace


def test_a_sum_that_is_decomposed_at_once_needs_no_guess_any_more():
    trace = "a1: 3+6=09\na2: 09+7=16\na3: 16+5=21\na: =21\nb: 7+4=11\n"
    assert label_lines(PROBLEM.question, trace) == ["essential"] * 3 + ["redundant", "essential"]


def test_valid_thinking_ends_where_every_sum_has_its_result():
    tokenizer = build_tokenizer(world)
    reader = StepReader(tokenizer, "</think>", *SwapConfig().segmentation)
    needed = "a: =20\nb: 7+4=11\na1: 3+6=09\na2: 09+7=16\na3: 16+5=21\n"
    ids = tokenizer(needed + "let me verify\ncheck b: 7+4=11\n", add_special_tokens=False)["input_ids"]
    assert reader.text(ids[: world.valid_thinking(ids, "2111", reader)]) == needed
    assert world.valid_thinking(ids[:20], "2111", reader) == 0


@given(problems)
def test_the_shortest_traces_are_right_and_essential(problem):
    for guessing in (False, True):
        trace = shortest_trace(problem, guessing)
        assert set(label_lines(problem.question, trace)) == {"essential"}
        results = {}
        for name, result in re.findall(r"^([a-e])\d?: .*=(\d\d)$", trace, re.MULTILINE):
            results[name] = result
        assert "".join(results.values()) == problem.answer == "".join(f"{sum(s):02d}" for s in problem.sums)
    assert len(thought_lines(shortest_trace(problem))) == problem.operations


@given(problems, st.integers(0, 2**31))
def test_every_line_of_a_trace_computes_rightly_but_a_guess_that_is_only_read(problem, seed):
    thought, read = overthink(problem, random.Random(seed), mend=True)
    for number, line in enumerate(thought, 1):
        if found := re.search(r"([a-e])\d?: ([\d+]*)=(\d\d)$", line):
            name, written, result = found.groups()
            terms = map(int, written.split("+")) if written else problem.sums["abcde".index(name)]
            right = sum(terms) == int(result)
            assert right == (number != read), (thought, number)
    if read:
        labels = label_lines(problem.question, "".join(thought))
        assert labels[read - 1] == "essential" and labels[read] == "useful"


@given(problems, st.integers(0, 2**31), st.sampled_from([0.0, 1.0]))
def test_a_row_ends_with_the_right_answer(problem, seed, probe_share):
    given_text, taught = supervised_row(problem, random.Random(seed), probe_share)
    assert given_text.startswith(prompt(problem))
    assert given_text.endswith(CLOSE) == (probe_share == 1.0)
    assert taught.endswith(problem.answer + "}" + EOS)
    assert (taught == problem.answer + "}" + EOS) == (probe_share == 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_a_world_s_problems_are_seeded_and_distinct_and_its_words_are_tokens(name):
    world = load(name)
    first = [problem for problem, _ in zip(world.problems(3), range(300), strict=False)]
    assert first == [problem for problem, _ in zip(world.problems(3), range(300), strict=False)]
    others = [p for p, _ in zip(world.problems(3, frozenset(first)), range(300), strict=False)]
    assert len({*first, *others}) == 600
    tokenizer = build_tokenizer(world)
    for word in world.WORDS:
        assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1
    for problem in first[:20]:
        given_text, taught = world.supervised_row(problem, random.Random(0), 0.0)
        labels = world.label_lines(problem.question, taught)
        assert set(labels) <= set(world.LABELS) and labels.count("essential") <= world.level(problem.question)
        ids = tokenizer(given_text + taught, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == given_text + taught
        lines = [tokenizer(line + "\n", add_special_tokens=False)["input_ids"] for line in thought_lines(taught)]
        assert all(len(line) >= world.STEP_TOKENS for line in lines if len(line) > 3)


def test_a_world_that_is_not_there():
    with pytest.raises(ConfigError, match=r"--world is moon; use addition, .*, word_pairs or columns"):
        load("moon")
