"""Gains that look further than one step, by hand."""

import re

import pytest
import torch
from gain_study import discounted, local, needed_steps, paid, position, separation, study, to_go, window

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
    assert position(SCORES).tolist() == [0.0, -1.0, -2.0]


def test_separation_and_share_by_hand():
    needed = torch.tensor([True, False, True, False])
    assert separation(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed) == 0.75
    assert separation(torch.zeros(4), needed) == 0.5
    assert paid(torch.zeros(4), needed, 1.0) == pytest.approx(0.5)
    weights = torch.tensor([-1.0, 0.0, -3.0, -2.0]).exp()
    expected = (weights[needed].sum() / weights.sum()).item()
    assert paid(torch.tensor([1.0, 0.0, 3.0, 2.0]), needed, 1.0) == pytest.approx(expected)


def test_a_step_is_needed_if_a_needed_line_ends_in_it():
    lines = [("one", "essential"), ("two", "redundant"), ("one", "useful"), ("last", "redundant")]
    assert needed_steps(lines, ["one\n", "two\n", "one\n", "last\n"]).tolist() == [True, False, True, False]
    assert needed_steps(lines, ["<think>\no", "ne\ntwo\n", "one\nlast"]).tolist() == [False, True, True]


def test_scored_responses_are_read(tmp_path):
    steps = ["preparation\n", "result\n", "hmm\n"]
    right = {"correct": True, "steps": steps, "answer_logprobs": [-9.0, -9.0, 0.0, 0.0], "step_ends": [3, 8, 9]}
    path = tmp_path / "scored.jsonl"

    def labelled(row):
        return [("preparation", "essential"), ("result", "essential"), ("hmm", "redundant")]

    one_step = right | {"steps": ["".join(steps)], "answer_logprobs": [-9.0, 0.0], "step_ends": [9]}
    write_rows(path, [right | {"correct": False}, one_step])
    with pytest.raises(DataError, match="none of the 2 responses"):
        study(path, labelled)
    write_rows(path, [right])
    text = study(path, labelled)
    assert text.startswith("1 responses, 66.7% of their steps needed")
    assert "| local          | 75.0%" in text  # the preparation is as good as the rest, the result better
    assert "| window 2       | 100.0%" in text
    assert "critic" not in text
    # Tokens 4, 5, 1; taken off what is left 6, 2, 0: costs -2, 3, 1. Needed: the first two.
    write_rows(path, [right | {"tokens_left": [10.0, 4.0, 2.0, 2.0]}])
    assert re.search(r"\| critic +\| 50\.0% +\|( +\|){3} 75\.0% +\|", study(path, labelled))
