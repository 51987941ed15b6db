"""The worlds: problems, traces and what each line is for; and rows that teach what some methods ask
of a policy.
"""

import random
import re
from itertools import islice

import addition
import decomposition
import pytest
from addition import Addition
from decomposition import (
    Sums,
    from_question,
    label_lines,
    overthink,
    prompt,
    shortest_trace,
    supervised_row,
)
from hypothesis import given
from hypothesis import strategies as st
from make_policy import SKIPPED, build_tokenizer, row_of_modes
from objectives import configurations
from world import CLOSE, EOS, NAMES, load, thought_lines

from openrlhf_swap import SwapConfig
from openrlhf_swap.errors import ConfigError
from openrlhf_swap.rollouts.rollout import StepReader

numbers = st.builds(Addition, st.integers(100, 999), st.integers(100, 999))
digits = st.sampled_from(decomposition.DIGITS)
problems = st.builds(
    lambda sums: Sums(tuple(map(tuple, sums))),
    st.lists(st.lists(digits, min_size=2, max_size=5), min_size=1, max_size=5),
)
PROBLEM = Sums(((3, 6, 7, 5), (7, 4)))  # 21 and 11


def test_the_ways_to_decompose_by_hand():
    assert PROBLEM.question == "Sums of a: 3+6+7+5, b: 7+4"
    assert (PROBLEM.answer, PROBLEM.operations, decomposition.level(PROBLEM.question)) == (
        "2111",
        4,
        4,
    )
    assert (
        shortest_trace(PROBLEM)
        == "a1: 3+6=09\na2: 09+7=16\na3: 16+5=21\nb: 7+4=11\n" + CLOSE + "2111}" + EOS
    )
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


@pytest.mark.parametrize(
    ("world", "needed", "more", "answer"),
    [
        (
            addition,
            "ones: 1+1+0=02\ntens: 1+1+0=02\nwait tens: 1+1+0=02\nhundreds: 1+1+0=02\n",
            "let me verify\nones: 1+1+0=02\n",
            "222",
        ),
        (
            decomposition,
            "a: =20\nb: 7+4=11\na1: 3+6=09\na2: 09+7=16\na3: 16+5=21\n",
            "let me verify\ncheck b: 7+4=11\n",
            "2111",
        ),
    ],
)
def test_valid_thinking_ends_where_all_that_is_needed_has_its_result(world, needed, more, answer):
    tokenizer = build_tokenizer(world)
    reader = StepReader(tokenizer, "</think>", *SwapConfig().segmentation)
    ids = tokenizer(needed + more, add_special_tokens=False)["input_ids"]
    assert reader.text(ids[: world.valid_thinking(ids, answer, reader)]) == needed
    assert world.valid_thinking(ids[:20], answer, reader) == 0


@given(problems)
def test_the_shortest_traces_are_right_and_essential(problem):
    for guessing in (False, True):
        trace = shortest_trace(problem, guessing)
        assert set(label_lines(problem.question, trace)) == {"essential"}
        results = {}
        for name, result in re.findall(r"^([a-e])\d?: .*=(\d\d)$", trace, re.MULTILINE):
            results[name] = result
        assert (
            "".join(results.values())
            == problem.answer
            == "".join(f"{sum(s):02d}" for s in problem.sums)
        )
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


def test_the_shortest_addition_by_hand():
    # 478 + 356: 8+6=14, 7+5+1=13, 4+3+1=8.
    expected = "ones: 8+6+0=14\ntens: 7+5+1=13\nhundreds: 4+3+1=08\n" + CLOSE + "834}<|end|>"
    assert addition.shortest_trace(Addition(478, 356)) == expected
    assert addition.label_lines("", expected) == ["essential"] * 3


@given(numbers, st.integers(0, 2**31))
def test_overthinking_an_addition_adds_redundant_lines_and_a_probe_asks_for_the_right_answer(
    problem, seed
):
    assert addition.shortest_trace(problem).endswith(
        CLOSE + str(problem.left + problem.right) + "}<|end|>"
    )
    trace = addition.overthinking_trace(problem, random.Random(seed))
    labels = addition.label_lines(problem.question, trace)
    assert labels.count("essential") == 3
    assert labels.count("redundant") == trace.split("</think>")[0].count("\n") - 3
    given_text, answer = addition.probe(problem, random.Random(seed))
    assert given_text.startswith(addition.prompt(problem)) and given_text.endswith(CLOSE)
    assert answer == problem.answer + "}<|end|>"


def test_lines_of_an_addition_are_labelled_by_what_they_add():
    trace = (
        "ones: 8+6+0=14\n"  # essential
        "check ones: 8+6+0=14\n"
        "hmm\n"
        "let me start over\n"
        "ones: 8+6+0=14\n"  # stated before
        "tens: 7+5+1=13\n"  # essential
    )
    expected = ["essential", "redundant", "redundant", "redundant", "redundant", "essential"]
    assert addition.label_lines("", trace + CLOSE + "834}") == expected


def test_the_prompt_is_what_the_chat_template_renders(tokenizer):
    problem = Addition(478, 356)
    messages = [{"role": "user", "content": problem.question}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == addition.prompt(problem)


@pytest.mark.parametrize("name", NAMES)
def test_a_world_s_problems_are_seeded_and_distinct_and_its_words_are_tokens(name):
    world = load(name)
    first = list(islice(world.problems(3), 300))
    assert first == list(islice(world.problems(3), 300))
    assert len({*first, *islice(world.problems(3, frozenset(first)), 300)}) == 600
    tokenizer = build_tokenizer(world)
    for word in world.WORDS:
        assert len(tokenizer(word, add_special_tokens=False)["input_ids"]) == 1
    for problem in first[:20]:
        given_text, taught = world.supervised_row(problem, random.Random(0), 0.0)
        labels = world.label_lines(problem.question, taught)
        assert set(labels) <= set(world.LABELS) and labels.count("essential") <= world.level(
            problem.question
        )
        ids = tokenizer(given_text + taught, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == given_text + taught
        lines = [
            tokenizer(line + "\n", add_special_tokens=False)["input_ids"]
            for line in thought_lines(taught)
        ]
        assert all(len(line) >= world.STEP_TOKENS for line in lines if len(line) > 3)


def test_a_world_that_is_not_there():
    with pytest.raises(
        ConfigError, match=r"--world is moon; use addition, .*, word_pairs or columns"
    ):
        load("moon")


BUDGETS = {
    " Think for N tokens.",
    " Think for maximum N tokens.",
    "I will answer the question with N tokens",
}
ELLIPSIS, PLAIN = "...\n", ""


@pytest.mark.parametrize("name", NAMES)
def test_rows_of_modes_ask_as_the_methods_do(name):
    world, rng = load(name), random.Random(0)
    problem = next(world.problems(0))
    thoughts: dict[str, list[str]] = {}
    for _ in range(2000):
        given, response = row_of_modes(world, problem, rng)
        assert given.startswith(f"<|user|>{problem.question}")
        question, opening = given.removeprefix(f"<|user|>{problem.question}").split(
            "<|assistant|><think>\n"
        )
        thought, answer = response.split(CLOSE)
        assert answer.endswith("}<|end|>")
        assert ("essential" in world.label_lines(problem.question, thought)) == bool(thought)
        thoughts.setdefault(re.sub(r"\d+", "N", question + opening), []).append(thought)
    assert set(thoughts) == BUDGETS | {ELLIPSIS, PLAIN}
    for asked, found in thoughts.items():
        # 2,000 rows: 400 of a kind, four standard errors are 0.092 of a share of 0.3.
        assert abs(len(found) - 400) < 80
        assert (
            all(found)
            if asked in BUDGETS
            else abs(1 - SKIPPED - sum(map(bool, found)) / len(found)) < 0.1
        )


@pytest.mark.parametrize("name", NAMES)
def test_where_a_policy_may_choose_one_token_says_what_it_chose(name):
    # Thinkless's marks: the first token of a response is one of two.
    world, rng = load(name), random.Random(0)
    tokenizer = build_tokenizer(world)
    rows = [
        (problem, *row_of_modes(world, problem, rng)) for problem in islice(world.problems(0), 300)
    ]
    plain = [
        text
        for problem, given, text in rows
        if given.endswith(f"{problem.question}<|assistant|><think>\n")
    ]
    firsts = {
        tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"][0])
        for text in plain
    }
    assert firsts == {world.THINK, "</think>"}


@pytest.mark.parametrize("name", ["addition", "decomposition"])
def test_the_rows_name_the_worlds_own_mark(name):
    thinkless = next(row for row in configurations(name) if row["name"] == "thinkless")
    assert load(name).THINK in thinkless["train"]
