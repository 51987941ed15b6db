"""Additions: problems, their shortest thought, and what each line is for."""

import random
from itertools import islice

from openrlhf_swap.quickstart import addition
from openrlhf_swap.quickstart.addition import Addition
from openrlhf_swap.quickstart.world import ADDITION, CLOSE, EOS, counts, load_world, thought_lines

THOUGHT = "ones: 8+6+0=14\ntens: 7+5+1=13\nhundreds: 4+3+1=08\n"


def test_a_problem_and_its_shortest_thought_by_hand():
    problem = Addition(478, 356)
    assert problem.question == "What is 478 + 356?"
    assert problem.answer == "834"
    assert addition.shortest_trace(problem) == THOUGHT + CLOSE + "834}" + EOS


def test_lines_are_labelled_by_what_they_add():
    lines = ("ones: 8+6+0=14", "check ones: 8+6+0=14", "hmm", "tens: 7+5+1=13")
    response = "".join(f"{line}\n" for line in lines) + CLOSE + "}"
    labels = ["essential", "redundant", "redundant", "essential"]
    assert addition.label_lines("", response) == labels
    assert counts(load_world(ADDITION), "", response) == {"essential": 2, "redundant": 2}


def test_problems_are_seeded_and_distinct_and_taught_traces_are_right(tokenizer):
    first = list(islice(addition.problems(3), 300))
    assert first == list(islice(addition.problems(3), 300))
    others = islice(addition.problems(3, frozenset(first)), 300)
    assert len({*first, *others}) == 600
    for number, problem in enumerate(first[:40]):
        given, taught = addition.supervised_row(problem, random.Random(number), 0.0)
        labels = addition.label_lines(problem.question, taught)
        assert len(labels) == len(thought_lines(taught))
        assert taught.endswith("}" + EOS)
        ids = tokenizer(given + taught, add_special_tokens=False)["input_ids"]
        assert tokenizer.decode(ids) == given + taught
