"""Gains that look further than one step, by hand."""

import addition
import pytest
import torch
from addition import Addition, shortest_trace
from gain_study import discounted, local, paid, read_scored, separation, table, to_go, window

from openrlhf_swap.errors import DataError
from openrlhf_swap.files import write_rows

SCORES = torch.tensor([-5.0, -5.0, -1.0, -2.0])  # a preparation, what uses it, and a step back


def test_gains_by_hand():
    assert local(SCORES).tolist() == [0.0, 4.0, -1.0]
    assert window(SCORES, 1).tolist() == [0.0, 4.0, -1.0]
    assert window(SCORES, 2).tolist() == [2.0, 1.5, -0.5]
    assert window(SCORES, 9)[0] == pytest.approx(3 / 9)
    assert discounted(SCORES, 0.5).tolist() == [1.75, 3.5, -1.0]
    assert discounted(SCORES, 0.0).tolist() == local(SCORES).tolist()
    assert to_go(SCORES).tolist() == [4.0, 4.0, -1.0]


def test_separation_and_share_by_hand():
    needed = torch.tensor([True, False, True, False])
    assert separation(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed) == 0.75
    assert separation(torch.zeros(4), needed) == 0.5
    assert paid(torch.zeros(4), needed, 1.0) == pytest.approx(0.5)
    weights = torch.tensor([-1.0, 0.0, -3.0, -2.0]).exp()
    expected = (weights[needed].sum() / weights.sum()).item()
    assert paid(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed, 1.0) == pytest.approx(expected)


def test_scored_responses_are_read(tmp_path):
    problem = Addition(478, 356)
    lines = shortest_trace(problem).split("</think>")[0].splitlines(keepends=True)
    steps = [*lines, "hmm\n"]
    right = {
        "problem": problem.question,
        "response": "".join(steps),
        "correct": True,
        "steps": steps,
        "answer_logprobs": [-9.0, -6.0, -3.0, 0.0, 0.0],
    }
    path = tmp_path / "scored.jsonl"
    write_rows(path, [right | {"correct": False}, right | {"steps": ["".join(steps)], "answer_logprobs": [-9.0, 0.0]}])
    with pytest.raises(DataError, match="none of the 2 responses"):
        read_scored(path, addition)
    write_rows(path, [right])
    (one,) = read_scored(path, addition)
    assert one.needed.tolist() == [True, True, True, False]
    assert "| local          | 100.0%" in table([one])
