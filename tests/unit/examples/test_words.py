"""The world that tests selectivity: its problems and traces, and the gates that a forward or two
can check.
"""

import random
from itertools import islice, permutations

import pytest
import torch
import word_pairs
import words
from decoding import padded_left
from gates import Bench, head_of, open_bench, passes, table
from hypothesis import given
from hypothesis import strategies as st
from make_policy import build_tokenizer
from support.paths import WORLDS
from support.tables import cells_of
from words import (
    Word,
    Words,
    from_question,
    known,
    label_lines,
    overthink,
    shortest_lines,
    shortest_trace,
)
from world import CLOSE, EOS, counts, load, rendered, thought_lines

# A is 8314709625, B is 3094162875, F is 9586274130, FLIP is 3590817642.
SINGLE = Words((Word("3", "AB"),), False, "59")  # 3 -A> 4 -B> 1
PAIR = Words((Word("0", "FA"), Word("7", "B", 5)), True, "12")  # 0 -flip> 3 -F> 6 -A> 9; 7 -B> 8

seeds = st.integers(0, 2**31)


def drawn(seed, count=1):
    return next(words.problems(seed, count=count))


@pytest.fixture(scope="module")
def policy():
    return [
        open_bench(load(name), WORLDS / "policies" / name, 30) for name in ("words", "word_pairs")
    ]


def test_the_answers_by_hand():
    assert (SINGLE.question, SINGLE.answer) == ("From 3 by A1B2, not 59", "1")
    assert shortest_trace(SINGLE) == "A1 3>4\nB2 4>1\n" + CLOSE + "1}" + EOS
    assert (PAIR.question, PAIR.answer) == ("Flip 0 by F1A2 and 7 by B5, not 12", "98")
    assert shortest_lines(PAIR) == ["flip 0>3\n", "F1 3>6\n", "A2 6>9\n", "B5 7>8\n"]
    assert words.level(PAIR.question) == 4


def test_letters_are_permutations_that_leave_nothing_where_it_is_and_do_not_commute():
    tables = {**words.LETTERS, "flip": words.FLIP}
    for table_ in tables.values():
        assert sorted(table_) == list(words.SYMBOLS)
        assert all(table_[int(symbol)] != symbol for symbol in words.SYMBOLS)
    assert all(words.FLIP[int(words.FLIP[i])] == str(i) for i in range(10))
    for first, second in permutations(words.LETTERS.values(), 2):
        assert any(second[int(first[i])] != first[int(second[i])] for i in range(10))


@given(seeds, st.sampled_from([1, 2]))
def test_a_problem_is_read_back_and_its_shortest_thought_has_all_that_is_needed(seed, count):
    problem = drawn(seed, count)
    assert from_question(problem.question) == problem
    assert problem.answer[-1] not in problem.ruled_out
    letters = sum(len(word.letters) for word in problem.words)
    assert 5 <= letters <= 9 and words.level(problem.question) == letters + problem.flipped
    found = counts(load("words"), problem.question, shortest_trace(problem))
    assert found == {"essential": letters + problem.flipped, "redundant": 0, "missing": 0}
    ends = {line.split()[0]: line[-2] for line in shortest_lines(problem)}
    assert "".join(ends[word.heads[-1]] for word in problem.words) == problem.answer


def test_lines_are_labelled_by_what_they_add_and_counted_where_they_lack():
    trace = {
        "flip 3>3": "redundant",  # nothing is to be flipped
        "so 4": "redundant",
        "A1 3>5": "essential",  # a slip is a statement
        "wait A1 3>5": "redundant",
        "A1 3>4": "redundant",
        "hmm": "redundant",
        "C3 4>9": "redundant",  # there is no such letter
    }
    response = "\n".join(trace) + "\n" + CLOSE + "1}"
    assert label_lines(SINGLE.question, response) == list(trace.values())
    assert counts(load("words"), SINGLE.question, response) == {
        "essential": 1,
        "redundant": 6,
        "missing": 1,
    }


@given(seeds, st.sampled_from([1, 2]))
def test_a_trace_errs_by_slips_and_left_out_lines_alone(seed, count):
    problem, rng = drawn(seed, count), random.Random(seed)
    lines, ends = overthink(problem, rng)
    heads = [head_of(line) for line in lines if not line.startswith(words.RECHECK)]
    needed = counts(load("words"), problem.question, "".join(lines))
    assert needed["essential"] + needed["missing"] == words.level(problem.question)
    steps = {line for line in lines if head_of(line) in problem.needed}
    right = needed["missing"] == 0 and all(
        words.replaced(head_of(line), line.split()[-1][0]) == line.split()[-1][2] for line in steps
    )
    if right and (problem.flipped or "flip 0>1\n" not in lines):
        idle = [line for line in lines if line.startswith("flip") and not problem.flipped]
        if all(line[5] == line[7] for line in idle):
            assert "".join(ends) == problem.answer
    assert all(word.heads[-1] in heads for word in problem.words)


def test_what_is_not_known_is_drawn_and_what_is_known_is_stated():
    lines, rng = shortest_lines(PAIR), random.Random(0)
    assert known(PAIR, lines, ["6", "8"], rng) == "68"
    after_one = {known(PAIR, lines[:3], ["6", "8"], rng) for _ in range(400)}
    assert after_one == {f"6{symbol}" for symbol in words.SYMBOLS}
    concluded = {known(PAIR, ["so 4\n", *lines[:3]], ["6", "8"], rng) for _ in range(400)}
    assert concluded == {f"6{symbol}" for symbol in words.SYMBOLS if symbol not in "12"}
    assert "0" not in {known(PAIR, [], ["6", "8"], rng)[0] for _ in range(200)}


def test_lines_that_are_no_conclusion_have_the_tokens_of_a_step():
    tokenizer = build_tokenizer(words)
    for problem in islice(words.taught(5), 20):
        lines, _ = overthink(problem, random.Random(1))
        for line in lines:
            size = len(tokenizer(line, add_special_tokens=False)["input_ids"])
            assert size == 1 or size >= words.STEP_TOKENS == len(tokenizer("so 4\n")["input_ids"])


def probability(bench: Bench, thoughts):
    """Mean probability of the whole answer behind these lines."""
    size = len(bench.problems[0].words)
    texts = (
        rendered(problem.question) + "".join(lines) + CLOSE + problem.answer
        for problem, lines in zip(bench.problems, thoughts, strict=True)
    )
    ids, mask = padded_left(
        [bench.decoder.encode(text) for text in texts], bench.decoder.tokenizer.pad_token_id
    )
    with torch.no_grad():
        scores = (
            bench.decoder.model(ids, attention_mask=mask).logits[:, -size - 1 : -1].log_softmax(-1)
        )
    return float(scores.gather(-1, ids[:, -size:, None]).sum(1).exp().mean())


def without(problem, place):
    """The needed lines but one, with the symbols that then follow."""
    lines, symbol = [], problem.words[0].start
    starts = {word.heads[0]: word.start for word in problem.words}
    for number, head in enumerate(problem.needed):
        if number != place:
            source = symbol if head == problem.words[0].heads[0] else starts.get(head, symbol)
            symbol = words.replaced(head, source)
            lines.append(f"{head} {source}>{symbol}\n")
    return lines


def test_the_policy_needs_every_line_and_nothing_else(policy):
    for bench, most in zip(policy, (0.15, 0.03), strict=True):
        assert probability(bench, [shortest_lines(problem) for problem in bench.problems]) > 0.9
        assert probability(bench, [[] for _ in bench.problems]) < most
        for place in (0, 2, 4):
            assert (
                probability(bench, [without(problem, place) for problem in bench.problems]) < 0.15
            )


def test_a_template_forces_all_but_symbols(policy):
    bench = policy[0]
    text = "A1 3>4\n" + CLOSE
    forced, open_ = bench.template(text, rewritten=False), bench.template(text, rewritten=True)
    assert [len(choice) for choice in forced] == [1] * len(forced)
    assert [i for i, choice in enumerate(open_) if len(choice) == 10] == [1, 2]
    decode = bench.decoder.tokenizer.decode
    assert decode([choice[0] for choice in forced]) == text
    assert [decode(token) for token in open_[2]] == [f">{symbol}" for symbol in words.SYMBOLS]


def test_gates_are_held_against_their_bounds():
    gates = {"inside": (0.1, (0.0, 0.15)), "outside": (0.2, (0.0, 0.15)), "free": (7.0, None)}
    assert [passes(*gate) for gate in gates.values()] == [True, False, True]
    _, *rows = cells_of(table(gates))
    assert rows == [
        ["inside", "0.100", "0 to 0.15", ""],
        ["outside", "0.200", "0 to 0.15", "FAILS"],
        ["free", "7.000", "", ""],
    ]


def test_pairs_are_the_same_world_with_two_words():
    for problem in islice(word_pairs.problems(3), 50):
        first, second = problem.words
        assert (
            len(first.letters) == 4 and 1 <= len(second.letters) <= 5 and problem.answer[0] != "0"
        )
        assert len(thought_lines(shortest_trace(problem))) == word_pairs.level(problem.question)
