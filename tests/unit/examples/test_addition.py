import random

from addition import (
    CLOSE,
    Addition,
    label_lines,
    overthinking_trace,
    probe,
    problems,
    prompt,
    shortest_trace,
    valid_thinking,
)
from hypothesis import given
from hypothesis import strategies as st

from openrlhf_swap import SwapConfig
from openrlhf_swap.rollouts.rollout import StepReader

numbers = st.builds(Addition, st.integers(100, 999), st.integers(100, 999))


def test_the_shortest_trace_by_hand():
    # 478 + 356: 8+6=14, 7+5+1=13, 4+3+1=8.
    expected = "ones: 8+6+0=14\ntens: 7+5+1=13\nhundreds: 4+3+1=08\n" + CLOSE + "834}<|end|>"
    assert shortest_trace(Addition(478, 356)) == expected
    assert label_lines("", expected) == ["essential"] * 3


@given(numbers)
def test_the_shortest_trace_is_right(problem):
    assert shortest_trace(problem).endswith(CLOSE + str(problem.left + problem.right) + "}<|end|>")


@given(numbers, st.integers(0, 2**31))
def test_overthinking_adds_redundant_lines_only(problem, seed):
    trace = overthinking_trace(problem, random.Random(seed))
    labels = label_lines(problem.question, trace)
    assert labels.count("essential") == 3
    assert labels.count("redundant") == trace.split("</think>")[0].count("\n") - 3


def test_lines_are_labelled_by_what_they_add():
    trace = (
        "ones: 8+6+0=14\n"  # essential
        "check ones: 8+6+0=14\n"
        "hmm\n"
        "let me start over\n"
        "ones: 8+6+0=14\n"  # stated before
        "tens: 7+5+1=13\n"  # essential
    )
    expected = ["essential", "redundant", "redundant", "redundant", "redundant", "essential"]
    assert label_lines("", trace + CLOSE + "834}") == expected


@given(numbers, st.integers(0, 2**31))
def test_a_probe_asks_for_the_right_answer(problem, seed):
    given_text, answer = probe(problem, random.Random(seed))
    assert given_text.startswith(prompt(problem))
    assert given_text.endswith(CLOSE)
    assert answer == problem.answer + "}<|end|>"


def test_problems_are_seeded_and_distinct():
    first = [problem for problem, _ in zip(problems(3), range(500), strict=False)]
    assert first == [problem for problem, _ in zip(problems(3), range(500), strict=False)]
    assert len(set(first)) == 500
    others = [p for p, _ in zip(problems(3, exclude=frozenset(first)), range(500), strict=False)]
    assert not set(first) & set(others)


def test_the_prompt_is_what_the_chat_template_renders(tokenizer):
    problem = Addition(478, 356)
    messages = [{"role": "user", "content": problem.question}]
    rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert rendered == prompt(problem)
    ids = tokenizer(rendered + shortest_trace(problem), add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == rendered + shortest_trace(problem)


def test_valid_thinking_ends_with_the_last_missing_column(tokenizer):
    reader = StepReader(tokenizer, "</think>", *SwapConfig().segmentation)
    needed = "ones: 1+1+0=02\ntens: 1+1+0=02\nwait tens: 1+1+0=02\nhundreds: 1+1+0=02\n"
    ids = tokenizer(needed + "let me verify\nones: 1+1+0=02\n", add_special_tokens=False)["input_ids"]
    assert reader.text(ids[: valid_thinking(ids, "222", reader)]) == needed
    assert valid_thinking(ids[:20], "222", reader) == 0
